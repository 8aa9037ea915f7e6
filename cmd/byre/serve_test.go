package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/postgres/pgtest"
)

// databases returns the flags of a server on each database.
func databases() map[string]func(t *testing.T) []string {
	return map[string]func(t *testing.T) []string{
		"sqlite":   func(*testing.T) []string { return nil },
		"postgres": func(t *testing.T) []string { return []string{"--endpoint", pgtest.DSN(t)} },
	}
}

// onDatabases runs a test with the flags of each database.
func onDatabases(t *testing.T, test func(t *testing.T, flags ...string)) {
	t.Helper()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) { test(t, flags(t)...) })
	}
}

func TestServe_DeletesANamespace(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	makeAndDeleteNamespace(t, kubernetes.NewForConfigOrDie(server.config(t)), "deleted-by-a-controller")
}

func TestServe_RefusesWrongArguments(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("not a directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	if err := os.WriteFile(foreign, []byte(strings.Repeat("another program's data ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"serve", "--no-such-flag"}, "unknown flag: --no-such-flag"},
		{"wrong value", []string{"serve", "--secure-port=https"}, "--secure-port"},
		{"wrong port", []string{"serve", "--secure-port=70000"}, "--secure-port must be between 0 and 65535"},
		{"argument", []string{"serve", "please"}, `unknown command "please"`},
		{"etcd", []string{"serve", "--etcd-servers=http://127.0.0.1:2379"}, "--etcd-servers is not supported: objects are kept in SQLite or PostgreSQL: use --endpoint"},
		{"unwritable directory", []string{"serve", "--data-dir", filepath.Join(file, "data")}, "--data-dir"},
		{"bad endpoint", []string{"serve", "--data-dir", t.TempDir(), "--endpoint=etcd://localhost"}, "--endpoint: want sqlite:///path or postgres://"},
		{"no database there", []string{"serve", "--data-dir", t.TempDir(), "--endpoint=postgres://u:secret@127.0.0.1:1/db?connect_timeout=1"}, "127.0.0.1"},
		{"database of another program", []string{"serve", "--data-dir", t.TempDir(), "--endpoint=sqlite://" + foreign}, "foreign.db"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := command(t, "", test.args...)
			if status := p.wait(t); status != 1 {
				t.Errorf("exit status is %d", status)
			}
			out := strings.TrimSpace(p.log.String())
			if !strings.Contains(out, test.want) || strings.Contains(out, "secret") {
				t.Errorf("output is %q, want %q", out, test.want)
			}
			if lines := strings.Split(out, "\n"); len(lines) != 1 {
				t.Errorf("%d lines of output: %q", len(lines), lines)
			}
		})
	}
}

func TestServe_RefusesASecondServer(t *testing.T) {
	t.Parallel()
	first := sharedServer(t, "sqlite")
	t.Run("on the same database", func(t *testing.T) {
		second := command(t, first.dir, serveArgs(first.dir)...)
		if status := second.wait(t); status != 1 {
			t.Errorf("exit status is %d", status)
		}
		if out := second.log.String(); !strings.Contains(out, "byre.db") || !strings.Contains(out, "another byre") {
			t.Errorf("output is %q", out)
		}
	})
	t.Run("on the same port", func(t *testing.T) {
		address := strings.TrimPrefix(first.config(t).Host, "https://")
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		second := command(t, "", "serve", "--data-dir", t.TempDir(), "--bind-address=127.0.0.1", "--secure-port="+port)
		if status := second.wait(t); status != 1 {
			t.Errorf("exit status is %d", status)
		}
		if out := second.log.String(); !strings.Contains(out, address+" is in use by another program") {
			t.Errorf("output is %q", out)
		}
	})
	if status, body := first.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("the first server says %d %s", status, body)
	}
}
