package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
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
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Path: "/" + database, RawQuery: url.Values{"host": {c.dir}}.Encode()}
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
