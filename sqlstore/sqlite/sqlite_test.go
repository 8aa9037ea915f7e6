package sqlite_test

import (
	"net/url"
	"path/filepath"
	"testing"

	"byre/migrations"
	"byre/sqlstore/sqlite"
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
