package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"byre/sqlstore/storetest"
)

// startAs starts the program under another name in the directory work. The program writes
// the administrator's kubeconfig to dir.
func startAs(t *testing.T, name, work, dir string, args ...string) *serverProcess {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable)
	cmd.Args = append([]string{filepath.Join("/some/folder", name)}, args...)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return start(t, dir, cmd)
}

func TestNames_KubeAPIServerKeepsObjectsBesideTheStandinAndEndsWithIt(t *testing.T) {
	t.Parallel()
	work, data, certs := t.TempDir(), filepath.Join(t.TempDir(), "etcd"), filepath.Join(t.TempDir(), "certs")
	url := "http://127.0.0.1:" + freePort(t)
	dir := filepath.Join(data, "byre", "registry")
	// The server starts first and waits for the stand-in.
	server := startAs(t, "kube-apiserver", work, dir, "--etcd-servers="+url, "--bind-address=127.0.0.1", "--secure-port=0",
		"--cert-dir="+certs, "--etcd_cafile=ca.crt", "--storage-backend", "etcd3", "--authorization-mode=RBAC", "")
	etcd := startAs(t, "etcd", work, "", "--listen-client-urls="+url, "--data-dir="+data,
		"--listen-peer-urls=http://127.0.0.1:0", "--name", "default", "--unsafe-no-fsync")
	// The kubeconfig trusts the server's own CA, and the serving certificate is the one of
	// --cert-dir.
	storetest.Eventually(t, "the server listens", func() bool {
		server.mustRun(t)
		return strings.Contains(server.log.String(), serving)
	})
	if log := server.log.String(); strings.Count(log, "change nothing") != 1 ||
		!strings.Contains(log, `ignored=["--etcd-cafile","--storage-backend"]`) {
		t.Error("the log does not say once which flags are ignored")
	}
	for _, file := range []string{filepath.Join(dir, "byre.db"), filepath.Join(certs, "apiserver.crt")} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "byre.db-reserve")); err == nil && info.Size() > 0 {
		t.Errorf("a database for a test has a reserve of %d bytes", info.Size())
	}
	if status := etcd.stop(t); status != 0 {
		t.Errorf("etcd ended with %d", status)
	}
	if status := server.wait(t); status != 0 {
		t.Errorf("kube-apiserver ended with %d", status)
	}
	if left, err := os.ReadDir(work); err != nil || len(left) > 0 {
		t.Errorf("left in the working directory: %v, %v", left, err)
	}
}

func TestNames_KubeAPIServerBesideAnotherEtcdKeepsItsOwnDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{{"--data-dir=" + dir}, nil} {
		work, data := t.TempDir(), dir
		if args == nil {
			data = filepath.Join(work, "byre-data")
		}
		server := startAs(t, "kube-apiserver", work, data,
			append(args, "--etcd-servers=https://127.0.0.1:1", "--etcd-cafile=ca.crt",
				"--bind-address=127.0.0.1", "--secure-port=0")...)
		awaitReady(t, server)
		if _, err := os.Stat(filepath.Join(data, "byre.db")); err != nil {
			t.Error(err)
		}
		warned := strings.Contains(server.log.String(), "--etcd-servers is not used: objects are kept in sqlite:")
		if warned != (args == nil) {
			t.Errorf("%q: it warns of where objects are kept: %v", args, warned)
		}
		if status := server.stop(t); status != 0 {
			t.Errorf("%q: it ended with %d", args, status)
		}
	}
}

func TestNames_AnswerInOneLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, args string
		status     int
		out, err   string
	}{
		{"/bin/kube-apiserver", "--version", 0, "Kubernetes v1.37.2+byre\n", ""},
		{"kube-apiserver", "serve", 1, "", "kube-apiserver: kube-apiserver takes no arguments but flags: [\"serve\"]\n"},
		{"kube-apiserver", "--etcd-servers=http://127.0.0.1:1 --event-ttl=x", 1, "",
			"kube-apiserver: invalid argument \"x\" for \"--event-ttl\" flag: \"x\" is not a time such as 90d, 12h, 5m or 1h30m\n"},
		{"etcd", "--version", 0, "etcd Version: 3.7.0\n", ""},
		{"/folder/etcd", "--listen-client-urls=https://127.0.0.1:0 --data-dir=" + t.TempDir(), 1, "",
			"etcd: --listen-client-urls: \"https://127.0.0.1:0\" is not of the form http://HOST:PORT, the only one that this stand-in for etcd serves\n"},
		{"byre.test", "serve --etcd-servers=http://127.0.0.1:2379", 1, "",
			"byre: --etcd-servers is not supported: objects are kept in SQLite or PostgreSQL: use --endpoint\n"},
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), test.name, strings.Fields(test.args), &out, &errOut)
		if status != test.status || out.String() != test.out || errOut.String() != test.err {
			t.Errorf("%s %s: %d, %q, %q", test.name, test.args, status, out.String(), errOut.String())
		}
	}
}

func TestNames_KubectlIsTheOneOnThePath(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts byre")
	}
	dir := t.TempDir()
	script := []byte("#!/bin/sh\necho \"$@\"\nexit 7\n")
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), script, 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable)
	cmd.Args = []string{"kubectl", "get", "--help", "-o", "yaml"}
	cmd.Env = append(os.Environ(), asProgram+"=1", "KUBECTL=", "PATH="+dir)
	out, _ := cmd.Output() // its status is checked next
	if status := cmd.ProcessState.ExitCode(); status != 7 || string(out) != "get --help -o yaml\n" {
		t.Errorf("%d, %q", status, out)
	}
	cmd = exec.Command(executable)
	cmd.Args = []string{"kubectl", "version"}
	cmd.Env = append(os.Environ(), asProgram+"=1", "KUBECTL=", "PATH="+t.TempDir())
	problem, _ := cmd.CombinedOutput()
	if status := cmd.ProcessState.ExitCode(); status != 1 || strings.Count(string(problem), "\n") != 1 ||
		!strings.Contains(string(problem), "put one on the PATH") {
		t.Errorf("without a kubectl: %d, %q", status, problem)
	}
}

func TestNames_EnvtestAssetsPrintsTheFolder(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache) // macOS derives its cache directory from it
	status, out, errOut := call("envtest-assets")
	if status != 0 || !strings.HasPrefix(out, cache) {
		t.Fatalf("%d, %q, %q", status, out, errOut)
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if _, err := os.Stat(filepath.Join(strings.TrimSpace(out), name)); err != nil {
			t.Error(err)
		}
	}
}
