package sqlite_test

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// open creates a database in a directory of the test.
func open(t testing.TB) (driver *sqlite.Driver, path string) {
	t.Helper()
	return openWith(t, 0)
}

// migrated creates an empty database in a directory of the test.
func migrated(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a dir?#%", "byre.db")
	if _, err := migrations.Up(t.Context(), "sqlite://"+(&url.URL{Path: path}).EscapedPath()); err != nil {
		t.Fatal(err)
	}
	return path
}

// openWith is open with Options.LogPages.
func openWith(t testing.TB, logPages int) (driver *sqlite.Driver, path string) {
	t.Helper()
	path = migrated(t)
	var err error
	driver, err = sqlite.Open(t.Context(), path, sqlite.Options{LogPages: logPages})
	if err != nil {
		t.Fatal(err)
	}
	return driver, path
}

func TestDriver_PassesTheSuite(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	storetest.Run(t, func(t *testing.T) sqlstore.Driver {
		driver, _ := open(t)
		return driver
	})
}

func BenchmarkDriver(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) sqlstore.Driver {
		driver, _ := open(b)
		b.Cleanup(func() { driver.Close() })
		return driver
	})
}

func FuzzKeys(f *testing.F) {
	storetest.Fuzz(f, func(t testing.TB) sqlstore.Driver {
		driver, _ := open(t)
		return driver
	})
}

func TestSnapshots_PassTheSuite(t *testing.T) {
	t.Parallel()
	storetest.RunSnapshots(t, func(t *testing.T) storetest.Database {
		path := filepath.Join(t.TempDir(), "a dir?#%", "byre.db")
		return storetest.Database{
			Open: func(t *testing.T) sqlstore.Driver {
				if _, err := migrations.Up(t.Context(), "sqlite://"+(&url.URL{Path: path}).EscapedPath()); err != nil {
					t.Fatal(err)
				}
				driver, err := sqlite.Open(t.Context(), path, sqlite.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return driver
			},
			ReadSnapshot: func(ctx context.Context, read func(sqlstore.Snapshot) error) error {
				return sqlite.ReadSnapshot(ctx, path, read)
			},
			Load: func(ctx context.Context, s sqlstore.Snapshot) error { return sqlite.Load(ctx, path, s) },
		}
	})
}
