package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
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

// No time-out of the role or the database ends the transactions of a backup and a restore, or the
// advisory lock that the backup runs under. PostgreSQL has transaction_timeout from version 17 on.
func TestSnapshots_OutliveTimeouts(t *testing.T) {
	t.Parallel()
	dsn, target := migrated(t), pgtest.DSN(t)
	source, migration := connect(t, dsn), connect(t, target)
	driver := openMore(t, dsn, postgres.Options{})
	for _, resource := range []string{"pods", "configmaps"} {
		write := create("a")
		write[0].Key.Resource = resource
		if o, err := driver.Commit(t.Context(), write); err != nil || o[0].Err != nil {
			t.Fatal(o, err)
		}
	}
	for _, conn := range []*pgx.Conn{source, migration} {
		if _, err := conn.Exec(t.Context(), `DO $$ DECLARE setting text; BEGIN
FOR setting IN SELECT name FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout') ORDER BY name LOOP
EXECUTE format('ALTER DATABASE %I SET %I = %L', current_database(), setting, CASE setting WHEN 'transaction_timeout' THEN '600ms' ELSE '500ms' END);
END LOOP; END $$`); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migration.Exec(t.Context(),
		`BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('byre migration public', 0))`); err != nil {
		t.Fatal(err)
	}
	var migrating sync.WaitGroup
	defer migrating.Wait()
	migrating.Go(func() {
		if _, err := migration.Exec(t.Context(), `SELECT pg_sleep(1); COMMIT`); err != nil {
			t.Error(err)
		}
	})
	limited := openMore(t, dsn, postgres.Options{})
	if _, err := limited.WithLock(t.Context(), "backup", func(ctx context.Context) error {
		return postgres.ReadSnapshot(ctx, dsn, func(s sqlstore.Snapshot) error {
			objects := s.Objects
			s.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
				for row, err := range objects {
					if _, slept := source.Exec(ctx, `SELECT pg_sleep(1)`); !yield(row, errors.Join(err, slept)) {
						return
					}
				}
			}
			if err := postgres.Load(ctx, target, s); err != nil {
				return err
			}
			if ran, err := driver.WithLock(ctx, "backup", func(context.Context) error { return nil }); ran || err != nil {
				t.Errorf("the lock was free: %v, %v", ran, err)
			}
			return nil
		})
	}); err != nil {
		t.Error(err)
	}
}

// TestDriver_OneRoundTripAnOperation: once its statements are prepared, each operation is
// one round trip. A batch includes its lock and its COMMIT, and a page of a list its
// revision and its count.
func TestDriver_OneRoundTripAnOperation(t *testing.T) {
	t.Parallel()
	driver, proxies := openThrough(t, 1, postgres.Options{})
	mustCreate(t, driver, "a")
	n := 0
	list := func(ctx context.Context, q sqlstore.Query) error {
		q.Resource = "pods"
		_, err := driver.List(ctx, q, func(sqlstore.Record) error { return nil })
		return err
	}
	for name, do := range map[string]func(context.Context) error{
		"Commit": func(ctx context.Context) error {
			n++
			_, err := driver.Commit(ctx, append(create(fmt.Sprint(n)), create(fmt.Sprint("other", n))...))
			return err
		},
		"State": func(ctx context.Context) error { _, err := driver.State(ctx); return err },
		"Get": func(ctx context.Context) error {
			_, _, err := driver.Get(ctx, create("a")[0].Key)
			return err
		},
		"List": func(ctx context.Context) error { return list(ctx, sqlstore.Query{}) },
		"page": func(ctx context.Context) error { return list(ctx, sqlstore.Query{Limit: 1, Count: true}) },
		"Changes": func(ctx context.Context) error {
			_, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: 10})
			return err
		},
		"Notify": func(ctx context.Context) error { return driver.Notify(ctx, 1) },
	} {
		// A pool takes the connection that was used last, and pings one that was idle for a
		// second. Operations that took that long are not counted.
		for counted := 0; counted < 3; {
			began := time.Now()
			if err := do(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			before := proxies[0].RoundTrips()
			if err := do(t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if trips := proxies[0].RoundTrips() - before; time.Since(began) < time.Second {
				counted++
				if trips != 1 {
					t.Errorf("%s: %d round trips", name, trips)
				}
			}
		}
	}
}

// The record of the last backup is that of the database, takes no revision, and is replaced by the next one.
func TestRecordBackup(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	if _, err := driver.LastBackup(t.Context()); !errors.Is(err, sqlstore.ErrNotFound) {
		t.Errorf("before the first backup: %v", err)
	}
	for revision := range int64(2) {
		want := sqlstore.LastBackup{Time: time.Now().UTC().Truncate(time.Second), Revision: revision, Location: "ü"}
		if err := postgres.RecordBackup(t.Context(), dsn, want); err != nil {
			t.Fatal(err)
		}
		if got, err := driver.LastBackup(t.Context()); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != 0 {
		t.Errorf("revision %d, %v", state.Revision, err)
	}
}
