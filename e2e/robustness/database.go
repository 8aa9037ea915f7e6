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
	// Endpoint is byre's --endpoint on SQLite, and Path the file.
	Endpoint, Path string
	// DSN is that of PostgreSQL's primary itself, without the proxies between it and
	// byre.
	DSN string
	// Site is a PostgreSQL of this Env alone, with what stands around it: each replica
	// reaches it through proxies of its own.
	Site *pgtest.Site
	// file is the file of the machine that serves; nil but for two machines.
	file func() string
}

// newDatabase makes an empty database; PostgreSQL gets servers of its own.
func newDatabase(t testing.TB, kind string, config pgtest.SiteConfig) *Database {
	t.Helper()
	if isMachines(kind) {
		return &Database{Kind: kind}
	}
	if kind == SQLite {
		path := filepath.Join(t.TempDir(), "byre.db")
		return &Database{Kind: kind, Path: path, Endpoint: (&url.URL{Scheme: "sqlite", Path: path}).String()}
	}
	site := pgtest.NewSite(t, config)
	return &Database{Kind: kind, DSN: site.DirectDSN(), Site: site}
}

func (d *Database) connect(ctx context.Context) (*tables.Connection, error) {
	return tables.Connect(ctx, d.engine(), d.address())
}

// Exec runs a statement in the database, on a connection of its own.
func (d *Database) Exec(ctx context.Context, statement string) error {
	return tables.Exec(ctx, d.engine(), d.address(), statement)
}

// engine is SQLite or Postgres.
func (d *Database) engine() string {
	if d.file != nil {
		return SQLite
	}
	return d.Kind
}

func (d *Database) address() string {
	switch {
	case d.Kind == Postgres:
		return d.DSN
	case d.file != nil:
		return d.file()
	}
	return d.Path
}
