package pgtest

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// poolerConfig has PgBouncer assign a session of the server to each transaction.
const poolerConfig = `
[databases]
* = host=%s port=%d user=byre %s
[pgbouncer]
unix_socket_dir = %s
listen_addr =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
%s
`

// PoolerConfig has additions to poolerConfig.
type PoolerConfig struct {
	// Database are parameters of its databases, such as connect_query='...'.
	Database string
	// Settings are lines of its section [pgbouncer].
	Settings string
}

// Pooler is a running PgBouncer in transaction mode.
type Pooler struct {
	dir, database string
	credential    *syscall.Credential
	guard         *exec.Cmd
	// leash keeps PgBouncer running until it is closed.
	leash io.Closer
}

// poolerScript runs a program until standard input ends.
const poolerScript = `
"$@" >>log 2>&1 </dev/null &
pooler=$!
cat >/dev/null
kill -KILL $pooler
wait $pooler
rm -f .s.PGSQL.*
`

// NewPooler starts PgBouncer in front of the server of a DSN. It ends with the test.
func NewPooler(t testing.TB, dsn string) *Pooler {
	t.Helper()
	return PoolerConfig{}.New(t, dsn)
}

// New starts PgBouncer in front of the server of a DSN. It ends with the test.
func (c PoolerConfig) New(t testing.TB, dsn string) *Pooler {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pooler{database: config.Database}
	if p.credential, err = Unprivileged(); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: the path of a Unix socket has about 100 bytes at most, and that of the
	// test's folder may be longer.
	if p.dir, err = os.MkdirTemp("", "byre-bouncer"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if err := os.RemoveAll(p.dir); err != nil {
			t.Error(err)
		}
	})
	if p.credential != nil {
		if err := os.Chown(p.dir, int(p.credential.Uid), int(p.credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(poolerConfig, config.Host, config.Port, c.Database, p.dir, c.Settings)
	if err := os.WriteFile(filepath.Join(p.dir, "pgbouncer.ini"), []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// Start starts PgBouncer after a Kill and waits until it answers.
func (p *Pooler) Start(ctx context.Context) error {
	program, err := find("pgbouncer")
	if err != nil {
		return fmt.Errorf("%w: run .ci/setup", err)
	}
	p.guard = exec.Command("/bin/sh", "-c", poolerScript, "pgtest", program, filepath.Join(p.dir, "pgbouncer.ini")) //nolint:noctx // Kill ends it
	p.guard.Dir = p.dir
	p.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.credential}
	if p.leash, err = p.guard.StdinPipe(); err != nil {
		return err
	}
	if err := p.guard.Start(); err != nil {
		return err
	}
	if err := awaitAnswer(ctx, p.DSN()); err != nil {
		text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
		return fmt.Errorf("PgBouncer does not start: %w\n%s", err, text)
	}
	return nil
}

// Kill ends PgBouncer at once.
func (p *Pooler) Kill() {
	if p.leash == nil {
		return
	}
	// The errors only say that a signal ended PgBouncer.
	_, _ = p.leash.Close(), p.guard.Wait()
	p.leash = nil
}

// DSN returns the URL of the database through PgBouncer.
func (p *Pooler) DSN() string {
	u := url.URL{
		Scheme: "postgres", User: url.User("byre"), Path: "/" + p.database,
		RawQuery: url.Values{"host": {p.dir}, "port": {"6432"}}.Encode(),
	}
	return u.String()
}

// awaitAnswer waits up to a minute until a server answers.
func awaitAnswer(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ping(ctx, dsn)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

func ping(ctx context.Context, dsn string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `SELECT 1`)
	return err
}
