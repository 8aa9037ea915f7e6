// Package dbtest gives tests of what stands on the store empty databases of
// both kinds, at the schema of this program.
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
	// Shared says that several processes may use such a database at a time.
	Shared bool
	// Open opens an empty database. The caller closes the driver; the data goes
	// when the test ends.
	Open func(testing.TB) sqlstore.Driver
}

// Kinds are those that byre knows.
func Kinds() []Kind {
	return []Kind{
		{Name: "sqlite", Open: SQLite},
		{Name: "postgres", Shared: true, Open: Postgres},
	}
}

// SQLite opens an empty file.
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

// Postgres opens an empty database of a throwaway server.
func Postgres(t testing.TB) sqlstore.Driver {
	t.Helper()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return Connect(t, dsn)
}

// Connect opens a database that is there already, as another replica would.
func Connect(t testing.TB, dsn string) sqlstore.Driver {
	t.Helper()
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}
