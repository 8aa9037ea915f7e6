package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// After many reads at the same time the poll keeps one connection. The pool closes the others
// within the idle time and a check period, although each check changes which connection the
// poll uses. The times in this test are a tenth of the defaults.
func TestDriver_KeepsOneConnectionForThePoll(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver := openMore(t, dsn+"&application_name=polled&pool_max_conn_idle_time=500ms&pool_health_check_period=1s", postgres.Options{})
	mustCreate(t, driver, "x")
	admin := connect(t, dsn)
	count := func() (n int) {
		t.Helper()
		if err := admin.QueryRow(t.Context(), `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'polled'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	const lists = 8
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var inside, ended sync.WaitGroup
	inside.Add(lists)
	all := make(chan struct{})
	go func() { inside.Wait(); close(all) }()
	for range lists {
		ended.Go(func() {
			_, err := driver.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(sqlstore.Record) error {
				inside.Done()
				select {
				case <-all:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	if n := count(); n < lists {
		t.Fatalf("%d lists at once have left %d connections", lists, n)
	}
	storetest.EventuallySucceeds(t, "one connection is left", func() error {
		if _, err := driver.State(t.Context()); err != nil {
			return err
		}
		if n := count(); n != 1 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}
