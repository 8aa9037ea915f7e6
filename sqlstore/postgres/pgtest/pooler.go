package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
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
	folder
	database string
	guard    *guard // nil while it does not run
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
	if p.folder, err = newFolder("byre-bouncer"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if err := os.RemoveAll(p.dir); err != nil {
			t.Error(err)
		}
	})
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
	program, err := Program("pgbouncer")
	if err != nil {
		return fmt.Errorf("%w: run .ci/setup", err)
	}
	if p.guard, err = startGuard(p.folder, poolerScript, program, filepath.Join(p.dir, "pgbouncer.ini")); err != nil {
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
	if p.guard != nil {
		_ = p.guard.stop() // it only says that a signal ended PgBouncer
		p.guard = nil
	}
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
	for {
		err := ping(ctx, dsn)
		if err == nil || pause(ctx, pollInterval) != nil {
			return err
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
