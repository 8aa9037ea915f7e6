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

// shared is the one server of this process: to make one takes seconds, and a
// test binary has no other place for what its tests share.
var shared = sync.OnceValues(func() (*Cluster, error) { return Start(context.Background()) })

// databases numbers the databases of the shared server.
var databases atomic.Int64

// DSN returns the URL of an empty database, dropped when the test ends. Where
// there is no PostgreSQL the test is skipped, and with -short: to start a server takes
// more than a second.
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

// DSN is the URL of a database of the server.
func (c *Cluster) DSN(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Path: "/" + database, RawQuery: url.Values{"host": {c.dir}}.Encode()}
	return u.String()
}

// Exec runs a statement in the server's first database.
func (c *Cluster) Exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// awaitSynchronous waits until commits wait for a standby, which has all earlier ones.
func (c *Cluster) awaitSynchronous(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	const has = `SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= $1::pg_lsn`
	// First any synchronous standby, then one that has what is committed by then.
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
