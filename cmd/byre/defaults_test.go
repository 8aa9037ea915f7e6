package main

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestServe_NewInstallNeedsCredentials: the first start of a new installation serves TLS
// only, requires credentials, and writes secrets that only their owner can read.
func TestServe_NewInstallNeedsCredentials(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := server.config(t)
	t.Run("plain HTTP", func(t *testing.T) {
		response, err := http.Get("http://" + strings.TrimPrefix(config.Host, "https://") + "/api")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); response.StatusCode != http.StatusBadRequest || err != nil {
			t.Errorf("%s %s, %v", response.Status, body, err)
		}
	})
	t.Run("no credentials", func(t *testing.T) {
		for path, want := range map[string]int{
			"/api": http.StatusForbidden, "/apis": http.StatusForbidden, "/api/v1/namespaces": http.StatusForbidden, "/api/v1/secrets": http.StatusForbidden,
			"/openapi/v3": http.StatusForbidden, "/metrics": http.StatusForbidden, "/debug/pprof/": http.StatusForbidden, "/debug/pprof/heap": http.StatusForbidden,
			"/debug/flags/v": http.StatusForbidden, "/debug/api_priority_and_fairness/dump_requests": http.StatusForbidden, "/nowhere": http.StatusForbidden,
			// kube-apiserver answers these without credentials too.
			"/livez": http.StatusOK, "/readyz": http.StatusOK, "/version": http.StatusOK,
		} {
			if status, body, err := fetch(t.Context(), anonymous(), config.Host+path); err != nil || status != want {
				t.Errorf("%s: %d %s, %v, want %d", path, status, body, err, want)
			}
		}
	})
	t.Run("an administrator", func(t *testing.T) {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap?debug=1", "/debug/api_priority_and_fairness/dump_requests", "/metrics"} {
			if status, body := server.mustGet(t, path); status != http.StatusOK {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
	})
	t.Run("insecure port", func(t *testing.T) {
		if strings.Contains(server.log.String(), "without credentials") {
			t.Error("the insecure port is on")
		}
	})
	t.Run("files", func(t *testing.T) { checkModes(t, server.dir) })
}

// checkModes checks the mode of every file: certificates and public keys are readable by
// all users, other files by their owner only.
func checkModes(t *testing.T, dir string) {
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory, which the server has made, has mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, "byre.db-reserve")); err != nil || info.Size() != 32<<20 {
		t.Errorf("the reserve is %v, %v", info, err)
	}
	secret := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server works meanwhile
		} else if err != nil {
			return err
		}
		public := strings.HasSuffix(path, ".crt") || strings.HasSuffix(path, ".pub")
		if mode := info.Mode().Perm(); !public && mode&0o077 != 0 || mode&0o022 != 0 {
			t.Errorf("%s has mode %v", path, mode)
		}
		if !public {
			secret++
		}
		return nil
	})
	if err != nil || secret < 5 {
		t.Errorf("%d files with secrets, %v", secret, err)
	}
}

// TestServe_RunsAsAnyUser runs the server as a user who owns only the data directory.
func TestServe_RunsAsAnyUser(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	if os.Getuid() != 0 {
		t.Skip("this user is one, and every other test runs as it")
	}
	// (Other users cannot enter a test's own directories.)
	dir, err := os.MkdirTemp("", "byre-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, data := filepath.Join(dir, "byre"), filepath.Join(dir, "data")
	if out, err := exec.Command("cp", executable, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(data, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	p := start(t, data, &exec.Cmd{
		Path:        program,
		Args:        []string{"byre", "serve", "--data-dir", data, "--bind-address=127.0.0.1", "--secure-port=0"},
		Env:         []string{asProgram + "=1"},
		Dir:         data,
		SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
	})
	awaitReady(t, p)
	if status, body := p.mustGet(t, "/api/v1/namespaces/default"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status := p.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
}
