package pgtest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// guard is a shell that runs a program until the shell's standard input ends, which it does when this
// process ends, for whatever reason.
type guard struct {
	cmd *exec.Cmd
	// leash keeps the program running until it is closed.
	leash io.Closer
}

// startGuard starts a shell script in a folder.
func startGuard(f folder, script string, arguments ...string) (*guard, error) {
	g := &guard{cmd: exec.Command("/bin/sh", append([]string{"-c", script, "pgtest"}, arguments...)...)} //nolint:noctx // stop ends it
	f.confine(g.cmd)
	var err error
	if g.leash, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return g, g.cmd.Start()
}

// stop ends the program. The error may only say that a signal ended it.
func (g *guard) stop() error { return errors.Join(g.leash.Close(), g.cmd.Wait()) }

// folder is the temporary folder of a program, which runs as an unprivileged user if this process is
// root.
type folder struct {
	dir        string
	credential *syscall.Credential
}

// newFolder makes a folder. It is not one of t.TempDir: the path of a Unix socket has about 100 bytes at
// most.
func newFolder(name string) (f folder, err error) {
	if f.credential, err = Unprivileged(); err != nil {
		return f, err
	}
	if f.dir, err = os.MkdirTemp("", name); err != nil {
		return f, err
	}
	if err := f.give(f.dir); err != nil {
		return f, errors.Join(err, os.RemoveAll(f.dir))
	}
	return f, nil
}

// give gives a file to the user of the program.
func (f folder) give(path string) error {
	if f.credential == nil {
		return nil
	}
	return os.Chown(path, int(f.credential.Uid), int(f.credential.Gid))
}

// confine has a child process run in the folder, as the program's user, and in a process group of its own,
// which the terminal's signals do not reach.
func (f folder) confine(cmd *exec.Cmd) {
	cmd.Dir = f.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: f.credential}
}
