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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/sqlstore/postgres/pgtest"
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

// report logs, if the test has failed, the last lines that the process printed after the byte from, the file that has
// all of them, and the command that repeats the test alone.
func (p *serverProcess) report(t testing.TB, from int) {
	t.Helper()
	if !t.Failed() {
		return
	}
	log := p.log.String()[from:]
	file := filepath.Join(failedLogs,
		fmt.Sprintf("%s-%d.log", strings.NewReplacer("/", "_", " ", "_").Replace(t.Name()), p.cmd.Process.Pid))
	if err := errors.Join(os.MkdirAll(failedLogs, 0o750), os.WriteFile(file, []byte(log), 0o600)); err != nil {
		t.Log(err)
	}
	t.Logf("to repeat: go test -vet=off ./cmd/byre -run '^%s$'\nbyre %.200s printed (all in %s):\n%s",
		strings.ReplaceAll(t.Name(), "/", "$/^"), strings.Join(p.cmd.Args[1:], " "), strings.TrimPrefix(file, "../../"),
		lastLines(log))
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
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}}
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

// sharedByre is a server with default flags, and with the tokens of sharedTokens, that many tests use. The first test
// that asks for it starts it, and TestMain stops it. A test that uses it
//   - only reads, or writes to a namespace of its own and under names of its own;
//   - does not count what others may cause: requests, changes, objects of the whole cluster;
//   - leaves the files, keys and flags of the server, and its process, as they are.
//
// A test that isn't parallel has it for itself.
type sharedByre struct {
	*serverProcess
	// endpoint is its database.
	endpoint string

	once   sync.Once
	folder string
	err    error
}

// sharedServers are package variables because a start takes seconds, and tests of one binary share nothing else.
var sharedServers = map[string]*sharedByre{"sqlite": {}, "postgres": {}}

const (
	sharedAdmin  = "admin-secret" // the token of a user in system:masters
	sharedAlice  = "alice-secret" // the token of alice, who has no rights
	sharedTokens = sharedAdmin + ",admin,1,system:masters\n" + sharedAlice + ",alice,2\n"
)

// sharedServer returns the server on a database, sqlite or postgres.
func sharedServer(t *testing.T, database string) *sharedByre {
	t.Helper()
	if testing.Short() {
		t.Skip("starts byre")
	}
	if _, err := pgtest.Program("initdb"); err != nil && database == "postgres" {
		t.Skip(err)
	}
	s := sharedServers[database]
	s.once.Do(func() { s.err = s.serve(database) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	s.mustRun(t)
	from := len(s.log.String())
	t.Cleanup(func() { s.report(t, from) })
	return s
}

// onSharedServers runs a test on the server of each database.
func onSharedServers(t *testing.T, test func(t *testing.T, s *sharedByre)) {
	t.Helper()
	for database := range sharedServers {
		t.Run(database, func(t *testing.T) { test(t, sharedServer(t, database)) })
	}
}

// serve starts the server and waits until it is ready.
func (s *sharedByre) serve(database string) (err error) {
	if s.folder, err = os.MkdirTemp("", "byre-shared"); err != nil {
		return err
	}
	dir, tokens := filepath.Join(s.folder, "data"), filepath.Join(s.folder, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(sharedTokens), 0o600); err != nil {
		return err
	}
	args := serveArgs(dir, "--token-auth-file", tokens)
	s.endpoint = "sqlite://" + filepath.Join(dir, "byre.db")
	if database == "postgres" {
		if s.endpoint, err = makeSharedDatabase(); err != nil {
			return err
		}
		args = append(args, "--endpoint", s.endpoint)
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(executable, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	if s.serverProcess, err = launch(dir, cmd); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, storetest.Patience, true,
		func(ctx context.Context) (bool, error) {
			select {
			case <-s.exited:
				return false, errors.New("it has exited")
			default:
				return s.ready(ctx), nil
			}
		})
	if err != nil {
		return fmt.Errorf("the shared server on %s is not ready: %w\n%s", database, err, lastLines(s.log.String()))
	}
	return nil
}

// makeSharedDatabase makes a database that ends with the test process.
func makeSharedDatabase() (endpoint string, err error) {
	cluster, err := pgtest.Shared()
	if err != nil {
		return "", err
	}
	return cluster.DSN("shared"), cluster.Exec(context.Background(), `CREATE DATABASE shared`)
}

// makeNamespace makes a namespace for one test.
func (s *sharedByre) makeNamespace(t *testing.T) string {
	t.Helper()
	namespace, err := kubernetes.NewForConfigOrDie(s.config(t)).CoreV1().Namespaces().
		Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

// stopSharedServers stops what tests have started, and expects exit status 0.
func stopSharedServers() (err error) {
	for database, s := range sharedServers {
		if s.serverProcess != nil {
			err = errors.Join(err, s.end(database))
		}
		if s.folder != "" {
			err = errors.Join(err, os.RemoveAll(s.folder))
		}
	}
	return err
}

func (s *sharedByre) end(database string) error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		s.kill()
	}
	if status := s.cmd.ProcessState.ExitCode(); status != 0 {
		return fmt.Errorf("the shared server on %s ended with %d:\n%s", database, status, lastLines(s.log.String()))
	}
	return nil
}
