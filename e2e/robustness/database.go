package robustness

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // the test reads SQLite past byre

	"byre/e2e/robustness/history"
	"byre/sqlstore/postgres/pgtest"
)

// The kinds of databases.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// Database is where byre keeps its objects, as the test sees it.
type Database struct {
	Kind string
	// Endpoint is byre's --endpoint, unless a fault gives the replicas another one.
	Endpoint string
	// Path is SQLite's file, empty on PostgreSQL.
	Path string
	// DSN leads straight to PostgreSQL, whatever stands between it and byre. A fault
	// that moves the database to another server changes it.
	DSN string
	// Cluster is a PostgreSQL of this Env alone, to halt, resume, replicate.
	Cluster *pgtest.Cluster
}

// newDatabase makes an empty database; PostgreSQL gets a server of its own.
func newDatabase(ctx context.Context, t testing.TB, kind string) (*Database, error) {
	if kind == SQLite {
		path := filepath.Join(t.TempDir(), "byre.db")
		return &Database{Kind: kind, Path: path, Endpoint: "sqlite://" + path}, nil
	}
	cluster, err := pgtest.Start(ctx)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Logf("PostgreSQL ended with: %v", err)
		}
	})
	if err := cluster.Exec(ctx, "CREATE DATABASE byre"); err != nil {
		return nil, err
	}
	dsn := cluster.DSN("byre")
	return &Database{Kind: kind, Endpoint: dsn, DSN: dsn, Cluster: cluster}, nil
}

// connection reads the database, past byre.
type connection struct {
	postgres *pgx.Conn
	sqlite   *sql.DB
}

func (d *Database) connect(ctx context.Context) (*connection, error) {
	if d.Kind == Postgres {
		conn, err := pgx.Connect(ctx, d.DSN)
		return &connection{postgres: conn}, err
	}
	db, err := sql.Open("sqlite", "file:"+d.Path+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	// One connection: a statement sees what the one before it saw, or later.
	db.SetMaxOpenConns(1)
	return &connection{sqlite: db}, nil
}

func (c *connection) close(ctx context.Context) {
	// It only read: there is nothing to lose.
	if c.postgres != nil {
		_ = c.postgres.Close(ctx)
		return
	}
	_ = c.sqlite.Close()
}

// counters are byre's revision and compacted revision.
func (c *connection) counters(ctx context.Context) (revision, compacted int64, err error) {
	const query = `SELECT revision, compacted FROM counters`
	if c.postgres != nil {
		err = c.postgres.QueryRow(ctx, query).Scan(&revision, &compacted)
		return revision, compacted, err
	}
	err = c.sqlite.QueryRowContext(ctx, query).Scan(&revision, &compacted)
	return revision, compacted, err
}

// rows are what both databases' rows can do.
type rows interface {
	Next() bool
	Scan(into ...any) error
	Err() error
}

func (c *connection) query(ctx context.Context, postgres, sqlite string, scan func(rows) error, args ...any) error {
	var found rows
	if c.postgres != nil {
		rows, err := c.postgres.Query(ctx, postgres, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		found = rows
	} else {
		rows, err := c.sqlite.QueryContext(ctx, sqlite, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		found = rows
	}
	for found.Next() {
		if err := scan(found); err != nil {
			return err
		}
	}
	return found.Err()
}

// changes are the rows of the log after a revision up to another; those of a namespace's
// ConfigMaps have names.
func (c *connection) changes(ctx context.Context, namespace string, after, upTo int64) ([]history.Change, error) {
	const columns = `SELECT revision, op = 'delete', CASE WHEN resource = 'configmaps' AND namespace = `
	const rest = ` THEN name ELSE '' END FROM changes WHERE revision > `
	var all []history.Change
	err := c.query(ctx,
		columns+`$1`+rest+`$2 AND revision <= $3 ORDER BY revision`,
		columns+`?1`+rest+`?2 AND revision <= ?3 ORDER BY revision`,
		func(r rows) error {
			var change history.Change
			if err := r.Scan(&change.Revision, &change.Deletes, &change.Name); err != nil {
				return err
			}
			all = append(all, change)
			return nil
		}, namespace, after, upTo)
	return all, err
}

// objects are the names and revisions of a namespace's ConfigMaps.
func (c *connection) objects(ctx context.Context, namespace string) (map[string]int64, error) {
	const query = `SELECT name, revision FROM objects WHERE resource = 'configmaps' AND namespace = `
	all := map[string]int64{}
	err := c.query(ctx, query+`$1`, query+`?1`, func(r rows) error {
		var name string
		var revision int64
		if err := r.Scan(&name, &revision); err != nil {
			return err
		}
		all[name] = revision
		return nil
	}, namespace)
	return all, err
}

// Exec runs a statement in the PostgreSQL that byre uses.
func (d *Database) Exec(ctx context.Context, statement string) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.close(ctx)
	if conn.postgres == nil {
		return fmt.Errorf("%s is read only to the test", d.Kind)
	}
	_, err = conn.postgres.Exec(ctx, statement)
	return err
}
