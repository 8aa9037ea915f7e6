package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/sqlstore/eventually"
)

// asProgram makes the test binary run as byre: tests start the program as a process, with
// its signals and exit status, without building it a second time.
const asProgram = "BYRE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(runProcess())
	}
	os.Exit(m.Run())
}

// process is a running byre.
type process struct {
	cmd    *exec.Cmd
	dir    string
	log    *syncBuffer
	exited chan struct{}
}

// syncBuffer holds what a process writes; it can be read meanwhile.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// command starts the program and kills it when the test ends.
func command(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return start(t, dir, cmd)
}

// start starts a process of the program; with -short it skips the test.
func start(t testing.TB, dir string, cmd *exec.Cmd) *process {
	t.Helper()
	if testing.Short() {
		t.Skip("starts byre")
	}
	p := &process{cmd: cmd, dir: dir, log: new(syncBuffer), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the status is in ProcessState
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have exited
		<-p.exited
		if t.Failed() {
			t.Logf("output of byre %s:\n%s", strings.Join(cmd.Args[1:], " "), p.log)
		}
	})
	return p
}

// startServer starts a server in dir and waits until it is ready.
func startServer(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	p := command(t, dir, serveArgs(dir, args...)...)
	awaitReady(t, p)
	return p
}

// serveArgs returns the arguments of a server in dir, on a free port.
func serveArgs(dir string, args ...string) []string {
	return append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"}, args...)
}

// awaitReady waits until the server is ready.
func awaitReady(t testing.TB, p *process) {
	t.Helper()
	eventually.Done(t, "byre is ready", func(ctx context.Context) (bool, error) {
		p.mustRun(t)
		return p.ready(ctx), nil
	})
}

// mustRun fails the test if the process has exited.
func (p *process) mustRun(t testing.TB) {
	t.Helper()
	select {
	case <-p.exited:
		t.Fatal("byre exited before it was waited for")
	default:
	}
}

// serving is in the log once the port is open. The kubeconfig is written before that.
const serving = `"Serving" address=`

// waitForConfig waits until the server listens.
func waitForConfig(t *testing.T, p *process) *rest.Config {
	t.Helper()
	eventually.True(t, "byre listens", func() bool {
		p.mustRun(t)
		return strings.Contains(p.log.String(), serving)
	})
	return p.config(t)
}

// ready requests /readyz. It returns false while there is no kubeconfig, which has the
// server's address.
func (p *process) ready(ctx context.Context) bool {
	if !strings.Contains(p.log.String(), serving) {
		return false
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	if err != nil {
		return false
	}
	status, _, err := get(ctx, config, "/readyz")
	return err == nil && status == http.StatusOK
}

func (p *process) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func get(ctx context.Context, config *rest.Config, path string) (int, string, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, "", err
	}
	return fetch(ctx, client, config.Host+path)
}

func fetch(ctx context.Context, client *http.Client, url string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// mustGet is get for a request that must be answered.
func (p *process) mustGet(t *testing.T, path string) (int, string) {
	t.Helper()
	status, body, err := get(t.Context(), p.config(t), path)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

// anonymous is a client without credentials that trusts every certificate.
func anonymous() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
}

// stop sends SIGTERM and returns the exit status.
func (p *process) stop(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.wait(t)
}

func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		t.Fatal("byre runs for a minute although it should have exited")
		return 0
	}
}
