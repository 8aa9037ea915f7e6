package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// sharedByre is a server with default flags, and with the tokens of sharedTokens, that many tests use. The first test that
// asks for it starts it, and TestMain stops it. A test that uses it
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
	err = wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, storetest.Patience, true, func(ctx context.Context) (bool, error) {
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
