package storetest

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/sqlite"
)

func TestModel_PassesTheSuite(t *testing.T) {
	t.Parallel()
	run(t, func(testing.TB) sqlstore.Driver { return NewModel() })
}

func TestSQLite_PassesTheSuite(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	run(t, newSQLite)
}

// A driver that holds the changes of some keys in memory first passes the suite.
func TestSQLite_PassesTheSuiteWithVolatileKeys(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	isVolatile := func(k sqlstore.Key) bool { return len(k.Name)%2 == 1 }
	run(t, func(t testing.TB) sqlstore.Driver {
		return openSQLite(t, filepath.Join(t.TempDir(), "byre.db"), sqlite.Options{Volatile: isVolatile})
	})
}

func TestPostgres_PassesTheSuite(t *testing.T) {
	t.Parallel()
	run(t, newPostgres)
}

// What a pooler changes has tests of its own. The whole suite through one is for the night.
func TestPostgres_PassesTheSuiteThroughAPooler(t *testing.T) {
	if os.Getenv("BYRE_NIGHT") == "" {
		t.Skip("make night")
	}
	t.Parallel()
	run(t, func(t testing.TB) sqlstore.Driver {
		return openPostgres(t, pgtest.NewPooler(t, pgtest.DSN(t)).DSN())
	})
}

func BenchmarkSQLite(b *testing.B) { benchmark(b, newSQLite) }

func BenchmarkPostgres(b *testing.B) { benchmark(b, newPostgres) }

func FuzzSQLite(f *testing.F) { fuzz(f, newSQLite) }

func FuzzPostgres(f *testing.F) { fuzz(f, newPostgres) }

func TestSQLite_Snapshots(t *testing.T) {
	t.Parallel()
	runSnapshots(t, func(t *testing.T) database {
		path := filepath.Join(t.TempDir(), "a dir?#%", "byre.db")
		return database{
			Open: func(t *testing.T) sqlstore.Driver { return openSQLite(t, path, sqlite.Options{}) },
			ReadSnapshot: func(ctx context.Context, read func(sqlstore.Snapshot) error) error {
				return sqlite.ReadSnapshot(ctx, path, read)
			},
			Load: func(ctx context.Context, s sqlstore.Snapshot) error { return sqlite.Load(ctx, path, s) },
		}
	})
}

func TestPostgres_Snapshots(t *testing.T) {
	t.Parallel()
	runSnapshots(t, func(t *testing.T) database {
		dsn := pgtest.DSN(t)
		return database{
			Open: func(t *testing.T) sqlstore.Driver { return openPostgres(t, dsn) },
			ReadSnapshot: func(ctx context.Context, read func(sqlstore.Snapshot) error) error {
				return postgres.ReadSnapshot(ctx, dsn, read)
			},
			Load: func(ctx context.Context, s sqlstore.Snapshot) error { return postgres.Load(ctx, dsn, s) },
		}
	})
}

func TestSQLite_RetentionOfEachResource(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "byre.db")
	driver := openSQLite(t, path, sqlite.Options{})
	defer driver.Close()
	testRetention(t, driver, historyOf(t, "sqlite", migrations.SQLiteDSN(path)+"?_pragma=busy_timeout(10000)"))
}

func TestPostgres_RetentionOfEachResource(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	driver := openPostgres(t, dsn)
	defer driver.Close()
	testRetention(t, driver, historyOf(t, "pgx", dsn))
}

// historyOf returns a function that returns the rows of HistoryQuery.
func historyOf(t *testing.T, kind, dsn string) func() []string {
	t.Helper()
	db, err := sql.Open(kind, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return func() (texts []string) {
		rows, err := db.QueryContext(t.Context(), HistoryQuery)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			texts = append(texts, text)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return texts
	}
}

func skipIfShort(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
}

func newSQLite(t testing.TB) sqlstore.Driver {
	return openSQLite(t, filepath.Join(t.TempDir(), "byre.db"), sqlite.Options{})
}

// openSQLite migrates and opens the database at path.
func openSQLite(t testing.TB, path string, options sqlite.Options) sqlstore.Driver {
	t.Helper()
	migrate(t, "sqlite://"+(&url.URL{Path: path}).EscapedPath())
	driver, err := sqlite.Open(t.Context(), path, options)
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

func newPostgres(t testing.TB) sqlstore.Driver { return openPostgres(t, pgtest.DSN(t)) }

// openPostgres migrates and opens the database of a DSN.
func openPostgres(t testing.TB, dsn string) sqlstore.Driver {
	t.Helper()
	migrate(t, dsn)
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return driver
}

func migrate(t testing.TB, endpoint string) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
}
