package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/sqlstore/storetest"
)

// asProgram makes the test binary run as byre: tests start the program as a process, with
// its signals and exit status, without building it a second time.
const asProgram = "BYRE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(runProcess())
	}
	status := m.Run()
	if err := stopSharedServers(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// serverProcess is a running byre.
type serverProcess struct {
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

// program is the test binary's path.
func program(t testing.TB) string {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return executable
}

// command starts the program and kills it when the test ends.
func command(t *testing.T, dir string, args ...string) *serverProcess {
	t.Helper()
	return commandWith(t, nil, dir, args...)
}

// commandWith is command with more variables of the environment, each NAME=VALUE.
func commandWith(t *testing.T, env []string, dir string, args ...string) *serverProcess {
	t.Helper()
	cmd := exec.Command(program(t), args...)
	cmd.Env = slices.Concat(os.Environ(), []string{asProgram + "=1"}, env)
	return start(t, dir, cmd)
}

// start starts a process of the program; with -short it skips the test.
func start(t testing.TB, dir string, cmd *exec.Cmd) *serverProcess {
	t.Helper()
	if testing.Short() {
		t.Skip("starts byre")
	}
	p, err := launch(dir, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		p.report(t, 0)
	})
	return p
}

// launch starts a process of the program. The caller must call kill.
func launch(dir string, cmd *exec.Cmd) (*serverProcess, error) {
	p := &serverProcess{cmd: cmd, dir: dir, log: new(syncBuffer), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the status is in ProcessState
	}()
	return p, nil
}

// kill ends the process if it still runs.
func (p *serverProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have exited
	<-p.exited
}

// failedLogs is the folder of what the processes of failed tests printed, in the folder that git ignores.
const failedLogs = "../../bin/failed"

// report logs, if the test has failed, the last lines that the process printed after the byte from, the file that has all
// of them, and the command that repeats the test alone.
func (p *serverProcess) report(t testing.TB, from int) {
	t.Helper()
	if !t.Failed() {
		return
	}
	log := p.log.String()[from:]
	file := filepath.Join(failedLogs, fmt.Sprintf("%s-%d.log", strings.NewReplacer("/", "_", " ", "_").Replace(t.Name()), p.cmd.Process.Pid))
	if err := errors.Join(os.MkdirAll(failedLogs, 0o750), os.WriteFile(file, []byte(log), 0o600)); err != nil {
		t.Log(err)
	}
	t.Logf("to repeat: go test -vet=off ./cmd/byre -run '^%s$'\nbyre %.200s printed (all in %s):\n%s",
		strings.ReplaceAll(t.Name(), "/", "$/^"), strings.Join(p.cmd.Args[1:], " "), strings.TrimPrefix(file, "../../"), lastLines(log))
}

// lastLines returns the last lines of a log, as many as leave place on a screen for what failed.
func lastLines(log string) string {
	const lines, columns = 12, 300
	all := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		all[i] = line[:min(columns, len(line))]
	}
	return strings.Join(all, "\n")
}

// night skips a test that only "make night" runs, because it takes long or needs an idle machine.
func night(t testing.TB) {
	t.Helper()
	if os.Getenv("BYRE_NIGHT") == "" {
		t.Skip("make night")
	}
}

// startServer starts a server in dir and waits until it is ready.
func startServer(t *testing.T, dir string, args ...string) *serverProcess {
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
func awaitReady(t testing.TB, p *serverProcess) {
	t.Helper()
	storetest.EventuallyDone(t, "byre is ready", func(ctx context.Context) (bool, error) {
		p.mustRun(t)
		return p.ready(ctx), nil
	})
}

// mustRun fails the test if the process has exited.
func (p *serverProcess) mustRun(t testing.TB) {
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
func waitForConfig(t *testing.T, p *serverProcess) *rest.Config {
	t.Helper()
	storetest.Eventually(t, "byre listens", func() bool {
		p.mustRun(t)
		return strings.Contains(p.log.String(), serving)
	})
	return p.config(t)
}

// ready requests /readyz. It returns false while there is no kubeconfig, which has the
// server's address.
func (p *serverProcess) ready(ctx context.Context) bool {
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

func (p *serverProcess) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	// By default a client waits for most of its requests: it sends five a second. Without a limit, tests that poll would
	// take the processor from what they wait for.
	config.QPS, config.Burst = 50, 200
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
func (p *serverProcess) mustGet(t *testing.T, path string) (int, string) {
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
func (p *serverProcess) stop(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.wait(t)
}

func (p *serverProcess) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		t.Fatal("byre runs for a minute although it should have exited")
		return 0
	}
}
