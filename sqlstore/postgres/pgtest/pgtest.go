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
	if _, err := find("initdb"); err != nil {
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

// Exec executes a statement in the database "postgres".
func (c *Cluster) Exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// awaitSynchronous waits until there is a synchronous standby, and until it has received all
// commits of before it was one.
func (c *Cluster) awaitSynchronous(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	const has = `SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= $1::pg_lsn`
	// The first round waits for any synchronous standby, the second one until it has what
	// is committed by then.
	for _, position := range []string{`SELECT '0/0'`, `SELECT pg_current_wal_lsn()::text`} {
		var from string
		if err := conn.QueryRow(ctx, position).Scan(&from); err != nil {
			return err
		}
		for isThere := false; !isThere; {
			if err := conn.QueryRow(ctx, has, from).Scan(&isThere); err != nil {
				return err
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// Set changes a setting of the server, and waits until new sessions have it.
func (c *Cluster) Set(ctx context.Context, name, value string) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range []string{`ALTER SYSTEM SET ` + name + ` = '` + value + `'`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	for now := ""; now != value; {
		if err := conn.QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&now); err != nil {
			return err
		}
	}
	return nil
}
