package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shared starts the server that all tests of this process share. It is a package variable
// because to start a server takes seconds, and tests of one binary share nothing else.
var shared = sync.OnceValues(func() (*Cluster, error) { return Start(context.Background()) })

// Shared returns the server whose databases DSN returns. It ends with the test process.
func Shared() (*Cluster, error) { return shared() }

// databases numbers the databases of the shared server.
var databases atomic.Int64

// DSN returns the URL of an empty database, which is dropped when the test ends. It skips the
// test if there is no PostgreSQL, and with -short, because to start a server takes more than
// a second.
func DSN(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	if _, err := Program("initdb"); err != nil {
		t.Skip(err)
	}
	cluster, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("test%d", databases.Add(1))
	ctx := context.WithoutCancel(t.Context())
	if err := cluster.Exec(ctx, `CREATE DATABASE `+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	return cluster.DSN(name)
}

// DSN returns the URL of a database of the server.
func (c *Cluster) DSN(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Path: "/" + database,
		RawQuery: url.Values{"host": {c.dir}}.Encode()}
	return u.String()
}

// connected calls do with a connection to the database "postgres".
func (c *Cluster) connected(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return do(conn)
}

// Exec executes a statement in the database "postgres".
func (c *Cluster) Exec(ctx context.Context, statement string) error {
	return c.connected(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	})
}

// pollInterval is the time between two queries of await.
const pollInterval = 10 * time.Millisecond

// await waits until a query returns true.
func (c *Cluster) await(ctx context.Context, query string, arguments ...any) error {
	return c.connected(ctx, func(conn *pgx.Conn) error {
		for {
			var isTrue bool
			if err := conn.QueryRow(ctx, query, arguments...).Scan(&isTrue); err != nil || isTrue {
				return err
			}
			if err := pause(ctx, pollInterval); err != nil {
				return err
			}
		}
	})
}

// awaitSynchronous waits until there is a synchronous standby, and until it has received all
// commits of before it was one.
func (c *Cluster) awaitSynchronous(ctx context.Context) error {
	const has = `SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= $1::pg_lsn`
	if err := c.await(ctx, has, "0/0"); err != nil {
		return err
	}
	var committed string
	if err := c.connected(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&committed)
	}); err != nil {
		return err
	}
	return c.await(ctx, has, committed)
}

// Set changes a setting of the server, and waits until new sessions have it.
func (c *Cluster) Set(ctx context.Context, name, value string) error {
	for _, statement := range []string{`ALTER SYSTEM SET ` + name + ` = '` + value + `'`, `SELECT pg_reload_conf()`} {
		if err := c.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return c.await(ctx, `SELECT current_setting($1) = $2`, name, value)
}

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
var settings = []string{"listen_addresses=''", "shared_buffers=64MB", "max_connections=1000", "max_wal_size=512MB",
	"autovacuum_naptime=5s"}

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
		settings = append(settings, "archive_mode=on",
			fmt.Sprintf("archive_command='mkdir -p %[1]s && cp %%p %[1]s/%%f'", c.archive()))
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
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/",
		"/opt/homebrew/opt/postgresql*/bin/", "/usr/sbin/"} {
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

// archive returns the folder to which a server with Config.Archive copies its write-ahead log.
func (c *Cluster) archive() string { return filepath.Join(c.dir, "archive") }

// BaseBackup copies the server's data, and does not start the copy; see Recover.
func (c *Cluster) BaseBackup(ctx context.Context) (*Cluster, error) {
	return Config{}.prepare(ctx, "pg_basebackup", "--no-sync", "--checkpoint=fast", "--host="+c.dir, "--username=byre")
}

// SetRestorePoint makes a named restore point, and waits until the write-ahead log up to it is
// archived.
func (c *Cluster) SetRestorePoint(ctx context.Context, name string) error {
	var segment string
	if err := c.connected(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `SELECT pg_create_restore_point($1)`, name); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT pg_walfile_name(pg_switch_wal())`).Scan(&segment)
	}); err != nil {
		return err
	}
	if err := c.await(ctx, `SELECT coalesce(last_archived_wal >= $1, false) FROM pg_stat_archiver`, segment); err != nil {
		return fmt.Errorf("segment %s is not archived: %w", segment, err)
	}
	return nil
}

// Recover starts a base backup of the server from, which was halted, and recovers it to a
// restore point of that server. The server begins a new timeline.
func (c *Cluster) Recover(ctx context.Context, from *Cluster, point string) error {
	if err := c.configure([]string{
		"archive_mode=off",
		fmt.Sprintf("restore_command='cp %s/%%f %%p'", from.archive()),
		"recovery_target_name=" + point,
		"recovery_target_action=promote",
	}); err != nil {
		return err
	}
	if err := c.WriteFile("recovery.signal", nil); err != nil {
		return err
	}
	if err := c.Resume(ctx); err != nil {
		return err
	}
	return c.await(ctx, `SELECT NOT pg_is_in_recovery()`)
}

// Remove stops the server, if it runs, and removes what is left of it.
func (c *Cluster) Remove() {
	if c.guard != nil {
		_ = c.Stop() // it fails if the server was halted
	}
	_ = os.RemoveAll(c.dir)
}

// fewRights matches the statements of docs/operations/postgresql.md that make a role with few rights.
var fewRights = regexp.MustCompile("(?s)\n## A database role with few rights\n.*?\n```sql\n(.*?)\n```\n")

// FewRights makes the role byre_server in the database of a DSN as docs/operations/postgresql.md says, and
// returns the DSN for that role. The schema must be current. The role belongs to the whole server:
// the tests of a package make it one after the other.
func FewRights(t testing.TB, dsn string) string {
	t.Helper()
	statements := fewRights.FindSubmatch(postgresPage(t))
	if statements == nil {
		t.Fatal("docs/operations/postgresql.md does not say how to make a role with few rights")
	}
	ctx := context.WithoutCancel(t.Context())
	owner, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close(ctx) })
	if _, err := owner.PgConn().Exec(ctx, string(statements[1])).ReadAll(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the database is dropped
		if _, err := owner.PgConn().Exec(ctx, `DROP OWNED BY byre_server; DROP ROLE byre_server`).ReadAll(); err != nil {
			t.Error(err)
		}
	})
	return strings.Replace(dsn, "postgres://byre@", "postgres://byre_server@", 1)
}

// postgresPage returns docs/operations/postgresql.md, which is in a folder above the test's package.
func postgresPage(t testing.TB) []byte {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		page, err := os.ReadFile(filepath.Join(dir, "docs", "operations", "postgresql.md"))
		if err == nil {
			return page
		}
		if dir == filepath.Dir(dir) {
			t.Fatal(err)
		}
		dir = filepath.Dir(dir)
	}
}

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
