package robustness

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"

	"byre/e2e/robustness/tables"
	"byre/sqlstore/postgres/pgtest"
)

// The kinds of databases.
const (
	SQLite   = tables.SQLite
	Postgres = tables.Postgres
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
		return &Database{Kind: kind, Path: path, Endpoint: (&url.URL{Scheme: "sqlite", Path: path}).String()}, nil
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

func (d *Database) connect(ctx context.Context) (*tables.Connection, error) {
	return tables.Connect(ctx, d.Kind, d.address())
}

// Exec runs a statement in the database, on a connection of its own.
func (d *Database) Exec(ctx context.Context, statement string) error {
	return tables.Exec(ctx, d.Kind, d.address(), statement)
}

func (d *Database) address() string {
	if d.Kind == Postgres {
		return d.DSN
	}
	return d.Path
}
