package failover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"byre/apiserver/envtest/standin"
	"byre/e2e/failover/processes"
	"byre/e2e/programs"
	"byre/sqlstore/postgres/pgtest"
)

// site is the folder of one test, and the user as whom its programs run.
type site struct {
	testing.TB
	// tools is the folder into which .ci/unpack has unpacked Debian's packages.
	tools, dir string
	credential *syscall.Credential
}

func newSite(t testing.TB, tools string) *site {
	t.Helper()
	s := &site{TB: t, tools: tools}
	var err error
	if s.credential, err = pgtest.Unprivileged(); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: the path of a Unix socket has about 100 bytes at most.
	if s.dir, err = os.MkdirTemp("", "byre-fo"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.logTails()
		}
		if err := os.RemoveAll(s.dir); err != nil {
			t.Error(err)
		}
	})
	if err := s.own(s.dir); err != nil {
		t.Fatal(err)
	}
	return s
}

// own gives a file to the user of the programs.
func (s *site) own(path string) error {
	if s.credential == nil {
		return nil
	}
	return os.Chown(path, int(s.credential.Uid), int(s.credential.Gid))
}

// mkdir makes a folder of the programs' user.
func (s *site) mkdir(name string) string {
	path := filepath.Join(s.dir, name)
	if err := errors.Join(os.Mkdir(path, 0o700), s.own(path)); err != nil {
		s.Fatal(err)
	}
	return path
}

// write writes a file for the programs' user and returns its path.
func (s *site) write(name, text string) string {
	path := filepath.Join(s.dir, name)
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), s.own(path)); err != nil {
		s.Fatal(err)
	}
	return path
}

// takePort returns a free port.
func (s *site) takePort() string {
	port, err := standin.TakePort()
	if err != nil {
		s.Fatal(err)
	}
	return port
}

// program returns the path of one of Debian's programs: that of PostgreSQL in a folder of its own.
func (s *site) program(name string) string {
	for _, dir := range []string{s.bin(), filepath.Join(s.tools, "usr/bin"), filepath.Join(s.tools, "usr/sbin")} {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	s.Fatalf("there is no %s below %s", name, s.tools)
	return ""
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// bin is the folder of PostgreSQL's programs.
func (s *site) bin() string { return filepath.Join(s.tools, "usr/lib/postgresql/15/bin") }

// environment leads programs to their libraries, and keeps their files in the folder of the test.
func (s *site) environment() []string {
	return append(os.Environ(),
		"PATH="+strings.Join([]string{s.dir, s.bin(), filepath.Join(s.tools, "usr/bin"), "/usr/bin", "/bin"}, ":"),
		"PG_CONFIG="+filepath.Join(s.bin(), "pg_config"),
		"LD_LIBRARY_PATH="+filepath.Join(s.tools, "usr/lib/x86_64-linux-gnu"),
		"PYTHONPATH="+filepath.Join(s.tools, "usr/lib/python3/dist-packages"),
		"PYTHONDONTWRITEBYTECODE=1", "HOME="+s.dir, "XDG_RUNTIME_DIR="+s.dir, "LC_ALL=C.UTF-8", "PGCONNECT_TIMEOUT=2",
	)
}

// confine has a program run as the unprivileged user, in the folder of the test.
func (s *site) confine(cmd *exec.Cmd) {
	cmd.Dir, cmd.Env = s.dir, s.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.credential}
}

// run runs a program to its end.
func (s *site) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.program(name), args...)
	s.confine(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// runScript runs a script of a shell to its end.
func (s *site) runScript(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-ec", script)
	s.confine(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// process is a program that runs until it is released, with all that it starts.
type process struct {
	guard *exec.Cmd
	leash io.Closer
}

// start starts a program, which ends with the test; its log is NAME.log.
func (s *site) start(name, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{guard: exec.Command(programs.Guard.Path(), append([]string{program}, args...)...)}
	s.confine(p.guard)
	p.guard.Stdout, p.guard.Stderr = log, log
	if p.leash, err = p.guard.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.guard.Start(); err != nil {
		return nil, err
	}
	s.Cleanup(func() {
		if err := p.release(); err != nil {
			s.Error(err)
		}
	})
	return p, nil
}

// mustStart is start for a program that a topology begins with.
func (s *site) mustStart(name, program string, args ...string) *process {
	s.Helper()
	p, err := s.start(name, program, args...)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// release ends the program and all that it has started. A second call does nothing.
func (p *process) release() error {
	if p.leash == nil {
		return nil
	}
	err := errors.Join(p.leash.Close(), p.guard.Wait())
	p.leash = nil
	return err
}

// all are the processes of the program.
func (p *process) all() ([]processes.Process, error) {
	return processes.Descendants(p.guard.Process.Pid)
}

// signal sends a signal to all processes of the program.
func (p *process) signal(s syscall.Signal) error {
	// Twice, because one may start another meanwhile.
	for range 2 {
		all, err := p.all()
		if err != nil {
			return err
		}
		if err := processes.Signal(all, s); err != nil {
			return err
		}
	}
	return nil
}

// kill ends all processes of the program by SIGKILL, as a machine that loses its power.
func (p *process) kill() error {
	for p.leash != nil {
		all, err := p.all()
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return p.release()
		}
		if err := processes.Signal(all, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// logTails logs the ends of all logs.
func (s *site) logTails() {
	logs, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	if err != nil {
		s.Error(err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			s.Error(err)
		}
		const most = 6000
		s.Logf("%s:\n%s", filepath.Base(path), bytes.TrimSpace(text[max(0, len(text)-most):]))
	}
}
