package dbtest

import (
	"context"
	"path/filepath"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
	"byre/watch"
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

// RunStore runs a store and its feed on a driver, as one server does, until the test ends. The caller
// closes the driver.
func RunStore(t testing.TB, driver sqlstore.Driver, opts watch.Options) (*sqlstore.Store, *watch.Feed) {
	t.Helper()
	feed := watch.New(driver, opts)
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	Serve(t, "store", store.Run)
	Serve(t, "feed", feed.Run)
	return store, feed
}

// Serve runs a service until the test ends, and fails the test if run returns an error. Services
// end in the reverse order of the calls.
func Serve(t testing.TB, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}
