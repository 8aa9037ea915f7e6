package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"byre/e2e/programs"
)

// machine is a container in which systemd runs, with a network of its own. Its /usr, /etc and
// packages are those of this machine; what changes there goes away with the container.
type machine struct {
	// leader is the process of its systemd.
	leader string
}

// newMachine starts a machine whose systemd has reached basic.target. The machine has the
// released packages in /released, those of dir in /next, and kubectl in /opt.
func newMachine(t *testing.T, dir string) machine {
	t.Helper()
	needs(t, "systemd-nspawn")
	needs(t, "nsenter")
	if os.Geteuid() != 0 {
		t.Skip("only root may start a container with systemd")
	}
	root := t.TempDir()
	for _, name := range []string{"usr/lib", "etc", "var/lib/dpkg"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// systemd-nspawn refuses a root directory without this file.
	if err := os.WriteFile(filepath.Join(root, "usr", "lib", "os-release"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("systemd-nspawn", "--quiet", "--directory="+root,
		"--overlay=/usr::/usr", "--overlay=/etc::/etc", "--overlay=/var/lib/dpkg::/var/lib/dpkg",
		"--bind-ro="+dist+":/released", "--bind-ro="+dir+":/next", "--bind-ro="+programs.Kubectl.Path()+":/opt/kubectl",
		"--private-network", "--link-journal=no", "--console=pipe", "--notify-ready=yes",
		"--register=no", "--keep-unit", // which works where systemd doesn't run, too
		"--boot", "--", "--unit=basic.target")
	// It keeps what is written below /usr in TMPDIR.
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	s := startNotifying(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		// A systemd that reads its units again may miss the signal.
		kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait() // the status of a machine that is halted
	})
	m := machine{leader: s.await(t, "X_NSPAWN_LEADER_PID=")}
	s.await(t, "READY=1")
	return m
}

// run runs a command in the machine and returns what it prints.
func (m machine) run(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(mustRun(t, "nsenter", append([]string{"--target=" + m.leader, "--all", "--"}, args...)...))
}

// path is a file of the machine.
func (m machine) path(name string) string { return "/proc/" + m.leader + "/root" + name }

// property returns a property of byre's unit.
func (m machine) property(t *testing.T, name string) string {
	t.Helper()
	return m.run(t, "systemctl", "show", "--property="+name, "--value", "byre.service")
}

// mustBe checks properties of byre's unit.
func (m machine) mustBe(t *testing.T, when string, properties map[string]string) {
	t.Helper()
	for name, want := range properties {
		if got := m.property(t, name); got != want {
			t.Errorf("%s: %s of byre.service is %q, want %q\n%s", when, name, got, want,
				m.run(t, "journalctl", "--unit=byre.service", "--no-pager", "--lines=20"))
		}
	}
}

// kubectl runs kubectl as an administrator of the machine.
func (m machine) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return m.run(t, append([]string{"/opt/kubectl", "--kubeconfig=/var/lib/byre/admin.kubeconfig"}, args...)...)
}
