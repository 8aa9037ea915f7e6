package pgtest

import (
	"context"
	"errors"
	"fmt"
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

// Config says where a server keeps its files, and which settings it has. The zero value is a
// server in a temporary folder.
type Config struct {
	// Data and WAL are empty folders for the data and for the write-ahead log; an empty
	// text means a folder below the server's temporary folder. The caller removes Data and
	// WAL.
	Data, WAL string
	// WALSegment is the size of a file of the write-ahead log in MiB; 0 means 16.
	WALSegment int
	// Settings are more settings, each name=value. The server's standbys have them too.
	Settings []string
	// Archive has the server archive its write-ahead log, for Recover.
	Archive bool
}

// Cluster is a running server.
type Cluster struct {
	folder
	guard *guard // nil before the first start
}

// guardScript runs the server $2 on the folder $1 until standard input ends, and then stops
// it with SIGQUIT: an immediate shutdown, without a checkpoint. It removes the folder unless
// the folder has a file "keep".
const guardScript = `
dir=$1
shift
"$@" -D "$dir/data" -k "$dir" >>"$dir/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -QUIT $server
wait $server
[ -e "$dir/keep" ] || rm -rf "$dir"
`

// settings are those of every server. Tests of cmd/byre run as many at a time as there are
// processors, some with two byre processes of up to 17 connections each. A place for a
// connection takes 20 KB of shared memory and no semaphore of System V's on Linux.
var settings = []string{"listen_addresses=''", "shared_buffers=64MB", "max_connections=1000", "max_wal_size=512MB", "autovacuum_naptime=5s"}

// Start makes a server with the zero Config and waits until it answers. The caller stops it.
func Start(ctx context.Context) (*Cluster, error) { return Config{}.Start(ctx) }

// Start makes a server and waits until it answers. The caller stops it.
func (config Config) Start(ctx context.Context) (*Cluster, error) {
	arguments := []string{"--auth=trust", "--username=byre", "--encoding=UTF8", "--locale=C.UTF-8"}
	if config.Data == "" && config.WAL == "" {
		arguments = append(arguments, "--no-sync")
	}
	if config.WAL != "" {
		arguments = append(arguments, "--waldir="+config.WAL)
	}
	if config.WALSegment > 0 {
		arguments = append(arguments, fmt.Sprintf("--wal-segsize=%d", config.WALSegment))
	}
	return config.start(ctx, "initdb", arguments...)
}

// Standby makes an asynchronous standby of the server and starts it.
func (c *Cluster) Standby(ctx context.Context) (*Cluster, error) {
	return Config{}.start(ctx, "pg_basebackup",
		"--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--host="+c.dir, "--username=byre")
}

// promoteTimeout bounds the calls of pg_promote, each of which waits 10 seconds.
const promoteTimeout = 90 * time.Second

// Promote makes a standby a primary, and waits until it is.
func (c *Cluster) Promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, promoteTimeout)
	defer cancel()
	// pg_promote returns false, and no error, where the server is still a standby.
	err := c.await(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN pg_promote(true, 10) ELSE true END`)
	if err != nil {
		err = fmt.Errorf("the standby is not promoted: %w\n%s", err, c.logTail())
	}
	return err
}

// Rewind makes the server, which was halted, a standby of the server that was promoted in its
// place, and starts it. Changes that the promoted server does not have are lost. Both need
// the setting wal_log_hints=on.
func (c *Cluster) Rewind(ctx context.Context, primary *Cluster) error {
	// The checkpoint writes the new timeline to the control file, where pg_rewind reads it.
	if err := primary.Exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	program, err := Program("pg_rewind")
	if err != nil {
		return err
	}
	source := fmt.Sprintf("host=%s user=byre dbname=postgres", primary.dir)
	rewind := exec.CommandContext(ctx, program, "--no-sync", "--write-recovery-conf",
		"--target-pgdata="+filepath.Join(c.dir, "data"), "--source-server="+source)
	c.confine(rewind)
	if out, err := rewind.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_rewind: %w: %s", err, out)
	}
	return c.Resume(ctx)
}

// Restart ends the server as a crash would and starts it again, as
// "pg_ctl restart -m immediate" does.
func (c *Cluster) Restart(ctx context.Context) error {
	if err := c.Halt(); err != nil {
		return err
	}
	return c.Resume(ctx)
}

// start makes the data of a server by a program, such as initdb, and starts the server.
func (config Config) start(ctx context.Context, program string, arguments ...string) (*Cluster, error) {
	c, err := config.prepare(ctx, program, arguments...)
	if err != nil {
		return nil, err
	}
	if err := c.Resume(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	return c, nil
}

// prepare makes the data of a server by a program.
func (config Config) prepare(ctx context.Context, program string, arguments ...string) (_ *Cluster, err error) {
	if program, err = Program(program); err != nil {
		return nil, err
	}
	c := &Cluster{}
	if c.folder, err = newFolder("byre-pg"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(c.dir))
		}
	}()
	if config.Data != "" {
		if err := os.Symlink(config.Data, filepath.Join(c.dir, "data")); err != nil {
			return nil, err
		}
	}
	initialize := exec.CommandContext(ctx, program, append([]string{"-D", filepath.Join(c.dir, "data")}, arguments...)...)
	c.confine(initialize)
	if out, err := initialize.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, out)
	}
	settings := config.Settings
	if config.Archive {
		settings = append(settings, "archive_mode=on", fmt.Sprintf("archive_command='mkdir -p %[1]s && cp %%p %[1]s/%%f'", c.archive()))
	}
	return c, c.configure(settings)
}

// configure appends settings to postgresql.conf, in which the last setting of a name counts.
// They are not arguments of the server, because its tools read the file too.
func (c *Cluster) configure(more []string) error {
	file, err := os.OpenFile(filepath.Join(c.dir, "data", "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strings.Join(slices.Concat(settings, more), "\n") + "\n")
	return errors.Join(err, file.Close())
}

// WriteFile writes a file in the server's data folder, such as pg_hba.conf or a certificate,
// that only the server can read. The server reads it at its next start or reload.
func (c *Cluster) WriteFile(name string, content []byte) error {
	path := filepath.Join(c.dir, "data", name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return c.give(path)
}

// Resume starts the server after a Halt.
func (c *Cluster) Resume(ctx context.Context) error {
	postgres, err := Program("postgres")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(c.keep()); err != nil {
		return err
	}
	if c.guard, err = startGuard(c.folder, guardScript, c.dir, postgres); err != nil {
		return err
	}
	if err = awaitAnswer(ctx, c.DSN("postgres")); err != nil {
		err = errors.Join(fmt.Errorf("PostgreSQL does not start: %w\n%s", err, c.logTail()), c.Stop())
	}
	return err
}

// Halt stops the server as a crash would, and keeps its data for Resume.
func (c *Cluster) Halt() error {
	if err := os.WriteFile(c.keep(), nil, 0o600); err != nil {
		return err
	}
	err := c.Stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // the exit status of the shell is that of the server's signal
	}
	return err
}

// PID returns the process ID of the server's first process.
func (c *Cluster) PID() (int, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}

// Stop stops the server and removes its folder. Its error may only say that a signal ended
// the server.
func (c *Cluster) Stop() error { return c.guard.stop() }

func (c *Cluster) keep() string { return filepath.Join(c.dir, "keep") }

// logTail returns the end of the server's log.
func (c *Cluster) logTail() []byte {
	log, _ := os.ReadFile(filepath.Join(c.dir, "log")) // there is none if the server did not start
	return log[max(0, len(log)-2000):]
}

// Program returns the path of one of the server's programs: that in PATH, or the newest one in
// the folders of distributions.
func Program(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	var found []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/opt/homebrew/opt/postgresql*/bin/", "/usr/sbin/"} {
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

// Unprivileged returns the user as whom PostgreSQL runs; nil, which means this process's user,
// unless that is root.
func Unprivileged() (*syscall.Credential, error) {
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
