package envtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/envtest/standin"
)

const (
	// startTimeout bounds how long Launch waits for the server. It allows for a loaded
	// machine.
	startTimeout = time.Minute
	// stopTimeout is how long Stop waits before it kills the server.
	stopTimeout = 20 * time.Second
	// readyInterval is the time between two requests to /readyz.
	readyInterval = 10 * time.Millisecond
)

// Start starts a server for a test and returns an administrator's client configuration,
// without client-side rate limits. The server ends with the test. args are flags of
// "byre serve". If the server does not start, Start fails the test. If the test fails,
// the server's log is added to the test's log.
func Start(t testing.TB, args ...string) *rest.Config {
	t.Helper()
	s, err := Launch(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log := s.Log()
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("byre's log:\n%s", log)
		}
	})
	return s.Config()
}

// A Server is byre in a process of its own. The caller of Launch calls Stop.
type Server struct {
	dir     string
	config  *rest.Config
	process *exec.Cmd
	exited  chan struct{} // closed when the process has ended
	err     error         // how it ended; read after exited
	// end ends the stand-in for etcd; the server ends when the stand-in does. ended
	// receives the error of the stand-in.
	end   context.CancelFunc
	ended chan error
}

// Launch starts a server and waits until it is ready, for callers without a testing.TB,
// such as TestMain. It fails if the server is not ready within a minute or before ctx
// ends. The server itself runs until Stop, also after ctx has ended.
func Launch(ctx context.Context, args ...string) (*Server, error) {
	program, err := findProgram(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "byre-envtest-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, exited: make(chan struct{})}
	if err := s.start(ctx, program, args); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.awaitReady(ctx); err != nil {
		log := s.Log()
		return nil, errors.Join(fmt.Errorf("byre does not start: %w\n%s", err, log), s.Stop())
	}
	return s, nil
}

// start starts the stand-in and the process. The process is byre under the name
// kube-apiserver, because under this name byre ends when the stand-in does.
func (s *Server) start(ctx context.Context, program string, args []string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	log, err := os.Create(s.logFile())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer log.Close()
	s.process = exec.Command(program) //nolint:noctx // it outlives ctx: Stop ends it
	s.process.Args = append([]string{
		standin.KubeAPIServer, "--etcd-servers=http://" + l.Addr().String(),
		"--bind-address=127.0.0.1", "--secure-port=0", "--controllers=*",
	}, args...)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return errors.Join(err, l.Close())
	}
	go func() {
		s.err = s.process.Wait()
		close(s.exited)
	}()
	standing, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end, s.ended = end, make(chan error, 1)
	go func() {
		s.ended <- standin.Serve(standing, standin.Options{Listeners: []net.Listener{l}, DataDir: s.dir})
	}()
	return nil
}

// awaitReady waits until /readyz answers 200, and sets config.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		err := s.probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("it ended: %w", s.err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// probe requests /readyz once. If the server is ready, it sets config.
func (s *Server) probe(ctx context.Context) error {
	kubeconfig := filepath.Join((&standin.Standin{About: standin.About{DataDir: s.dir}}).Dir("registry"),
		"admin.kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %s", res.Status)
	}
	s.config = config
	return nil
}

// Config returns an administrator's client configuration, without client-side rate
// limits. The caller owns the result.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// Log is what the server has logged so far.
func (s *Server) Log() string {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(log))
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "byre.log") }

// Stop ends the server and deletes its files. It kills a server that takes longer than
// 20 seconds, and returns an error then.
func (s *Server) Stop() error {
	var err error
	if e := s.process.Process.Signal(syscall.SIGTERM); e != nil && !errors.Is(e, os.ErrProcessDone) {
		err = e
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-s.exited:
	case <-timeout.C:
		err = errors.Join(fmt.Errorf("byre did not end within %v of SIGTERM", stopTimeout), s.process.Process.Kill())
		<-s.exited
	}
	s.end()
	return errors.Join(err, s.err, <-s.ended, os.RemoveAll(s.dir))
}

// findProgram returns the path of byre.
func findProgram(ctx context.Context) (string, error) {
	if given := os.Getenv("BYRE_BINARY"); given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("BYRE_BINARY: %w", err)
		}
		return path, nil
	}
	if path, err := exec.LookPath("byre"); err == nil {
		return path, nil
	}
	// The go command builds the tool if it is not in the build cache.
	path, err := exec.CommandContext(ctx, "go", "tool", "-n", "byre/cmd/byre").Output()
	if err != nil {
		return "",
			errors.New(
				"no byre found: put it on the PATH, set BYRE_BINARY to its path, or run \"go get -tool byre/cmd/byre\" in this module")
	}
	return string(bytes.TrimSpace(path)), nil
}
