package postgres_test

import (
	"context"
	"testing"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// open migrates an empty database and connects to it.
func open(t testing.TB, options postgres.Options) (driver *postgres.Driver, dsn string) {
	t.Helper()
	dsn = migrated(t)
	driver, err := postgres.Open(t.Context(), dsn, options)
	if err != nil {
		t.Fatal(err)
	}
	return driver, dsn
}

// migrated returns the URL of a database that has the tables.
func migrated(t testing.TB) (dsn string) {
	t.Helper()
	dsn = pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return dsn
}

func TestDriver_PassesTheSuite(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	storetest.Run(t, func(t *testing.T) sqlstore.Driver {
		driver, _ := open(t, postgres.Options{})
		return driver
	})
}

func BenchmarkDriver(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) sqlstore.Driver {
		driver, _ := open(b, postgres.Options{})
		b.Cleanup(func() { driver.Close() })
		return driver
	})
}

func FuzzKeys(f *testing.F) {
	storetest.Fuzz(f, func(t testing.TB) sqlstore.Driver {
		driver, _ := open(t, postgres.Options{})
		return driver
	})
}

func TestSnapshots_PassTheSuite(t *testing.T) {
	t.Parallel()
	storetest.RunSnapshots(t, func(t *testing.T) storetest.Database {
		dsn := pgtest.DSN(t)
		return storetest.Database{
			Open: func(t *testing.T) sqlstore.Driver {
				if _, err := migrations.Up(t.Context(), dsn); err != nil {
					t.Fatal(err)
				}
				driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return driver
			},
			ReadSnapshot: func(ctx context.Context, read func(sqlstore.Snapshot) error) error {
				return postgres.ReadSnapshot(ctx, dsn, read)
			},
			Load: func(ctx context.Context, s sqlstore.Snapshot) error { return postgres.Load(ctx, dsn, s) },
		}
	})
}
