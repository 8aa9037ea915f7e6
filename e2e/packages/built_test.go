package packages

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// repository is the root of this repository.
var repository = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// dist is the directory of what is released.
var dist = filepath.Join(repository, "bin", "dist")

// released returns the files in bin/dist that the pattern names, at least one. Packages take
// minutes to build, so that their tests run with "make packages-test" only.
func released(t *testing.T, pattern string) []string {
	t.Helper()
	if os.Getenv("E2E_PACKAGES") == "" {
		t.Skip("make packages-test builds the packages first")
	}
	names, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("bin/dist has no %s: %v", pattern, err)
	}
	return names
}

// built returns the one file in bin/dist that the pattern names.
func built(t *testing.T, pattern string) string {
	t.Helper()
	names := released(t, pattern)
	if len(names) != 1 {
		t.Fatalf("bin/dist/%s: %q, want one file", pattern, names)
	}
	return names[0]
}

// mustRun runs a command and returns what it prints.
func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// needs skips a test where a program of the system is missing.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("no %s here", program)
	}
}

// service is a program that runs as a unit of systemd, with a notify socket of its own.
type service struct {
	cmd    *exec.Cmd
	notify *net.UnixConn
}

// startService starts cmd as a unit of Type=notify and waits until it is ready.
func startService(t *testing.T, cmd *exec.Cmd) *service {
	t.Helper()
	s := startNotifying(t, cmd)
	s.await(t, "READY=1")
	return s
}

// startNotifying starts cmd with a notify socket. The socket is in /tmp, below the root
// directory that cmd's SysProcAttr may set.
func startNotifying(t *testing.T, cmd *exec.Cmd) *service {
	t.Helper()
	root := ""
	if cmd.SysProcAttr != nil {
		root = cmd.SysProcAttr.Chroot
	}
	dir, err := os.MkdirTemp(filepath.Join(root, "/tmp"), "notify") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	s := &service{cmd: cmd}
	if s.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.notify.Close() })
	for _, name := range []string{dir, socket} { // for a service that runs as another user
		if err := os.Chmod(name, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Env = append(cmd.Environ(), "NOTIFY_SOCKET="+strings.TrimPrefix(socket, root))
	log := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may have exited
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the log of %s:\n%s", cmd.Path, log)
		}
	})
	return s
}

// await waits until the service sends a line with this prefix, and returns the rest of it.
func (s *service) await(t *testing.T, prefix string) string {
	t.Helper()
	if err := s.notify.SetReadDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	for {
		n, err := s.notify.Read(message)
		if err != nil {
			t.Fatalf("no %s: %v", prefix, err)
		}
		for line := range strings.Lines(string(message[:n])) {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return strings.TrimSpace(rest)
			}
		}
	}
}

// stop ends the service as systemctl stop does.
func (s *service) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.await(t, "STOPPING=1")
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the service ended with: %v", err)
	}
}

// debArch is this machine's name in the names of debs and archives, rpmArch that in the names
// of rpms.
const debArch = runtime.GOARCH

var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[debArch]
