package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cluster is a running server.
type Cluster struct {
	dir        string
	credential *syscall.Credential
	guard      *exec.Cmd
	// leash keeps the server running until it is closed.
	leash io.Closer
}

// guardScript runs the server $1 on the folder $2 until standard input ends.
const guardScript = `
"$1" -D "$2/data" -k "$2" -c listen_addresses= -c shared_buffers=64MB -c max_connections=200 \
     -c max_wal_size=512MB -c autovacuum_naptime=5s >>"$2/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -QUIT $server
wait $server
[ -e "$2/keep" ] || rm -rf "$2"
`

// Start makes a server and waits until it answers.
func Start(ctx context.Context) (*Cluster, error) {
	return start(ctx, "initdb", "--no-sync", "--auth=trust", "--username=byre", "--encoding=UTF8", "--locale=C.UTF-8")
}

// Standby makes an asynchronous standby of the server and starts it.
func (c *Cluster) Standby(ctx context.Context) (*Cluster, error) {
	return start(ctx, "pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--host="+c.dir, "--username=byre")
}

// Promote makes a standby a primary.
func (c *Cluster) Promote(ctx context.Context) error { return c.Exec(ctx, `SELECT pg_promote()`) }

// start has a program make the data of a server, and starts it.
func start(ctx context.Context, program string, arguments ...string) (_ *Cluster, err error) {
	if program, err = find(program); err != nil {
		return nil, err
	}
	c := &Cluster{}
	if c.credential, err = unprivileged(); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "byre-pg"); err != nil {
		return nil, err
	}
	if c.credential != nil {
		if err := os.Chown(c.dir, int(c.credential.Uid), int(c.credential.Gid)); err != nil {
			return nil, errors.Join(err, os.RemoveAll(c.dir))
		}
	}
	initialize := exec.CommandContext(ctx, program, append([]string{"-D", filepath.Join(c.dir, "data")}, arguments...)...)
	c.confine(initialize)
	if out, err := initialize.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", program, err, out), os.RemoveAll(c.dir))
	}
	if err := c.Resume(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	return c, nil
}

// Resume starts the server after a Halt.
func (c *Cluster) Resume(ctx context.Context) error {
	postgres, err := find("postgres")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(c.keep()); err != nil {
		return err
	}
	c.guard = exec.Command("/bin/sh", "-c", guardScript, "pgtest", postgres, c.dir)
	c.confine(c.guard)
	if c.leash, err = c.guard.StdinPipe(); err != nil {
		return err
	}
	if err := c.guard.Start(); err != nil {
		return err
	}
	return c.await(ctx)
}

// Halt stops the server as a crash would and keeps its data.
func (c *Cluster) Halt() error {
	if err := os.WriteFile(c.keep(), nil, 0o600); err != nil {
		return err
	}
	return c.Stop()
}

// PID is the process ID of the server's first process.
func (c *Cluster) PID() (int, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}

// Stop stops the server and, unless it was called by Halt, removes its data.
func (c *Cluster) Stop() error { return errors.Join(c.leash.Close(), c.guard.Wait()) }

func (c *Cluster) keep() string { return filepath.Join(c.dir, "keep") }

// confine keeps a child from the terminal's signals and from root's rights.
func (c *Cluster) confine(cmd *exec.Cmd) {
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.credential}
}

func (c *Cluster) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := c.Exec(ctx, `SELECT 1`)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			return errors.Join(fmt.Errorf("PostgreSQL does not start: %w\n%s", err, log[max(0, len(log)-2000):]), c.Stop())
		case <-ticker.C:
		}
	}
}

// Program finds a program of the PostgreSQL that Start runs.
func Program(name string) (string, error) { return find(name) }

// find looks for one of the server's programs.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	var found []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/opt/homebrew/opt/postgresql*/bin/"} {
		paths, err := filepath.Glob(pattern + program)
		if err != nil {
			return "", err
		}
		found = append(found, paths...)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("there is no %s on this machine", program)
	}
	return slices.Max(found), nil
}

// unprivileged is nil unless we are root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}
