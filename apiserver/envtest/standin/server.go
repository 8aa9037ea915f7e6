package standin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Paths beside those of etcd's client port.
const (
	aboutPath = "/byre/standin"      // answers About
	endPath   = "/byre/standin/wait" // answers when the server ends
)

// Version is the etcd version that the server reports: kubeadm's DefaultEtcdVersion of
// Kubernetes 1.37 (k8s.io/kubernetes/cmd/kubeadm/app/constants).
const Version = "3.7.0"

// About is what a stand-in reports about itself.
type About struct {
	// DataDir is the absolute path of the directory that the test has chosen.
	DataDir string `json:"dataDir"`
}

// Options say what a stand-in serves.
type Options struct {
	// ListenURLs are the URLs of etcd's --listen-client-urls: http://HOST:PORT.
	ListenURLs []string
	// Listeners are listeners to serve on in place of ListenURLs. Serve closes them.
	Listeners []net.Listener
	// DataDir is etcd's --data-dir. Serve creates it.
	DataDir string
	// Parent is the ID of the process with which the server ends; 0 means none.
	Parent int
}

// Serve answers in place of etcd until ctx or the parent process ends. It then returns
// nil.
func Serve(ctx context.Context, o Options) error {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	listeners := o.Listeners
	if len(listeners) == 0 {
		if listeners, err = listen(ctx, o.ListenURLs); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: newHandler(ctx, About{DataDir: dir}), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- server.Serve(l) }()
	}
	awaitEnd(ctx, o.Parent)
	cancel()
	err = server.Close()
	for range listeners {
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// listen binds all URLs or none.
func listen(ctx context.Context, urls []string) ([]net.Listener, error) {
	var all []net.Listener
	for _, given := range urls {
		l, err := listenAt(ctx, given)
		if err != nil {
			for _, open := range all {
				err = errors.Join(err, open.Close())
			}
			return nil, fmt.Errorf("--listen-client-urls: %w", err)
		}
		all = append(all, l)
	}
	if len(all) == 0 {
		return nil, errors.New("--listen-client-urls must name a URL")
	}
	return all, nil
}

func listenAt(ctx context.Context, given string) (net.Listener, error) {
	u, err := url.Parse(given)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" || u.Host == "" {
		return nil,
			fmt.Errorf("%q is not of the form http://HOST:PORT, the only one that this stand-in for etcd serves", given)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", u.Host)
}

// parentInterval is how often Serve checks whether the parent process has ended.
const parentInterval = 250 * time.Millisecond

// awaitEnd returns when ctx ends or parent is no longer the parent of this process.
func awaitEnd(ctx context.Context, parent int) {
	tick := time.NewTicker(parentInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if parent != 0 && os.Getppid() != parent {
				return
			}
		}
	}
}

// newHandler makes the handler of the server. ended is done when the server ends.
func newHandler(ended context.Context, about About) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", answer(map[string]string{"health": "true", "reason": ""}))
	mux.HandleFunc("GET /version", answer(map[string]string{"etcdserver": Version, "etcdcluster": Version[:4] + "0"}))
	for _, path := range []string{"/livez", "/readyz"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	}
	mux.HandleFunc("GET "+aboutPath, answer(about))
	mux.HandleFunc("GET "+endPath, func(w http.ResponseWriter, r *http.Request) {
		// The header tells the client that its request waits.
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // a client that is gone is not waiting
		select {
		case <-ended.Done():
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this is byre under the name etcd: it answers health checks and holds no keys",
			http.StatusNotImplemented)
	})
	return mux
}

func answer(value any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // a client that is gone needs no answer
	}
}
