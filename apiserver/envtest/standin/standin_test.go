package standin_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"byre/apiserver/envtest/standin"
	"byre/sqlstore/storetest"
)

// These variables make the test binary a stand-in, or the parent of one.
const (
	asStandin = "STANDIN_TEST_URL"
	asParent  = "STANDIN_TEST_PARENT"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asParent) != "":
		os.Exit(beParent())
	case os.Getenv(asStandin) != "":
		o := standin.Options{ListenURLs: []string{os.Getenv(asStandin)}, DataDir: os.Getenv("STANDIN_TEST_DIR"),
			Parent: os.Getppid()}
		if err := standin.Serve(context.Background(), o); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(childVariable) != "":
		os.Exit(takePorts())
	}
	os.Exit(m.Run())
}

// beParent starts a stand-in and ends at the end of its standard input, without stopping
// the stand-in.
func beParent() int {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asParent+"=")
	if err := cmd.Start(); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// freeURL returns a URL with a port that nobody listens on.
func freeURL(t *testing.T) string {
	t.Helper()
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	return "http://127.0.0.1:" + port
}

// start serves until the test ends or the returned function is called.
func start(t *testing.T, dir string, urls ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- standin.Serve(ctx, standin.Options{ListenURLs: urls, DataDir: dir}) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the stand-in ended with: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestServe_AnswersWhatEnvtestAsks(t *testing.T) {
	t.Parallel()
	first, second := freeURL(t), freeURL(t)
	start(t, filepath.Join(t.TempDir(), "new", "dir"), first, second)
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/health":  {http.StatusOK, `{"health":"true","reason":""}`},
		"/version": {http.StatusOK, `{"etcdcluster":"3.7.0","etcdserver":"` + standin.Version + `"}`},
		"/livez":   {http.StatusOK, "ok"},
		"/readyz":  {http.StatusOK, "ok"},
		"/v3/kv/range": {http.StatusNotImplemented,
			"this is byre under the name etcd: it answers health checks and holds no keys"},
		"/byre/elsewhere": {http.StatusNotImplemented,
			"this is byre under the name etcd: it answers health checks and holds no keys"},
	} {
		for _, url := range []string{first, second} {
			storetest.Eventually(t, url+path, func() bool {
				status, body, err := get(t, url+path)
				if err == nil && (status != want.status || body != want.body) {
					t.Fatalf("%s: %d %q, want %d %q", path, status, body, want.status, want.body)
				}
				return err == nil
			})
		}
	}
}

func get(t *testing.T, url string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, strings.TrimSpace(string(body)), err
}

func TestServe_RefusesWhatItCannotServe(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, test := range map[string]struct {
		urls []string
		want string
	}{
		"TLS": {[]string{"https://127.0.0.1:0"},
			"--listen-client-urls: \"https://127.0.0.1:0\" is not of the form http://HOST:PORT"},
		"no URL":       {nil, "--listen-client-urls must name a URL"},
		"a taken port": {[]string{"http://127.0.0.1:0", "http://" + taken.Addr().String()}, "address already in use"},
	} {
		err := standin.Serve(t.Context(), standin.Options{ListenURLs: test.urls, DataDir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestFind_WaitsForTheStandinAndLearnsItsDirectory(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), freeURL(t)
	type found struct {
		etcd *standin.Standin
		err  error
	}
	result := make(chan found, 1)
	go func() {
		// No stand-in serves the second URL yet: Find repeats its requests until one does.
		etcd, err := standin.Find(t.Context(), []string{"https://127.0.0.1:1", url})
		result <- found{etcd, err}
	}()
	stop := start(t, dir, url)
	got := <-result
	if got.err != nil || got.etcd.DataDir != dir {
		t.Fatalf("%+v, %v, want the directory %s", got.etcd, got.err, dir)
	}
	ended := make(chan error, 1)
	go func() { ended <- got.etcd.Wait(t.Context()) }()
	stop()
	if err := <-ended; err != nil {
		t.Errorf("waiting for the end: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := got.etcd.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with a context that has ended: %v", err)
	}
}

func TestFind_TakesNoOtherServerForAStandin(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"empty": "", "relative": `{"dataDir":"data"}`, "no directory": `{}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)
		if etcd, err := standin.Find(t.Context(), []string{server.URL}); !errors.Is(err, standin.ErrNone) {
			t.Errorf("%s: %+v, %v", name, etcd, err)
		}
	}
	for _, url := range []string{"https://127.0.0.1:2379", "unix:///run/etcd.sock", "::", ""} {
		if etcd, err := standin.Find(t.Context(), []string{url}); !errors.Is(err, standin.ErrNone) {
			t.Errorf("%s: %+v, %v", url, etcd, err)
		}
	}
}

func TestStandin_EachPrefixHasADirectoryBelowItsOwn(t *testing.T) {
	t.Parallel()
	etcd := standin.Standin{About: standin.About{DataDir: "/data"}}
	for prefix, want := range map[string]string{
		"/registry": "registry", "registry": "registry", "/a/b": "a%2Fb", "": "_", "/": "_", "..": "_..", "/../..": "..%2F..",
	} {
		if got := etcd.Dir(prefix); got != filepath.Join("/data/byre", want) {
			t.Errorf("%q: %s, want %s", prefix, got, want)
		}
	}
}

// A test process that is killed cannot stop its stand-in: the stand-in ends by itself.
func TestServe_EndsWithItsParent(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), freeURL(t)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), asParent+"=1", asStandin+"="+url, "STANDIN_TEST_DIR="+dir)
	alive, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = alive.Close()
		_ = parent.Wait() // its status says nothing here
	})
	storetest.Eventually(t, "the stand-in answers", func() bool {
		status, _, err := get(t, url+"/health")
		return err == nil && status == http.StatusOK
	})
	etcd, err := standin.Find(t.Context(), []string{url})
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal("killing process " + strconv.Itoa(parent.Process.Pid) + ": " + err.Error())
	}
	if err := etcd.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
