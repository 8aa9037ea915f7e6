// Package dbtest gives empty databases of both kinds, with this program's schema, to the
// tests of packages that use a store.
package dbtest

import (
	"path/filepath"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

// Kind is a kind of database.
type Kind struct {
	Name string
	// Shared says that several processes may use such a database at the same time.
	Shared bool
	// Open makes an empty database and opens it. The caller closes the driver. The
	// database is removed when the test ends.
	Open func(testing.TB) sqlstore.Driver
}

// Kinds returns the kinds of database that byre supports.
func Kinds() []Kind {
	return []Kind{
		{Name: "sqlite", Open: SQLite},
		{Name: "postgres", Shared: true, Open: Postgres},
	}
}

// SQLite makes a database in an empty file and opens it.
func SQLite(t testing.TB) sqlstore.Driver {
	t.Helper()
	path := filepath.Join(t.TempDir(), "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+path); err != nil {
		t.Fatal(err)
	}
	driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

// Postgres makes an empty database on the test process's PostgreSQL server and opens it.
func Postgres(t testing.TB) sqlstore.Driver {
	t.Helper()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return Connect(t, dsn)
}

// Connect opens a database that Postgres has made, as another replica would.
func Connect(t testing.TB, dsn string) sqlstore.Driver {
	t.Helper()
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}
