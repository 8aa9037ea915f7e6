package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/eventually"
	"byre/sqlstore/postgres"
)

// lockObjects locks the table of objects until unlock is called. waiters waits until a number of
// statements wait for it.
func lockObjects(t *testing.T, dsn string) (waiters func(int), unlock func()) {
	t.Helper()
	holder, admin := connect(t, dsn), connect(t, dsn)
	exec := func(statement string) {
		t.Helper()
		if _, err := holder.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`BEGIN; LOCK TABLE current_objects IN ACCESS EXCLUSIVE MODE`)
	return func(n int) {
		t.Helper()
		eventually.Done(t, "statements wait", func(ctx context.Context) (bool, error) {
			var waiting int
			err := admin.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
			return waiting >= n, err
		})
	}, func() { exec(`ROLLBACK`) }
}

// readers is more than the pool for reads has connections.
const readers = 12

// State and Changes answer while reads of other tables, which wait for a lock, have all
// connections for reads.
func TestRead_WaitForATableKeepsTheFeed(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{ReadTimeout: recovery})
	defer driver.Close()
	mustCreate(t, driver, "first")
	waiters, unlock := lockObjects(t, dsn)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var reads sync.WaitGroup
	for range readers {
		reads.Go(func() {
			if _, _, err := driver.Get(ctx, create("first")[0].Key); err == nil {
				t.Error("a read of the table ends")
			}
		})
	}
	defer reads.Wait()
	defer cancel()
	waiters(10)
	asking, stop := context.WithTimeout(t.Context(), recovery/2)
	defer stop()
	if state, err := driver.State(asking); err != nil || state.Revision != 1 {
		t.Errorf("state: %+v, %v", state, err)
	}
}

// A server on which reads wait for the lock of a table is not taken for dead: a batch that began
// before the reads goes on.
func TestRead_WaitForATableIsNoSilence(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{LockTimeout: recovery, CommitTimeout: recovery, ReadTimeout: 2 * time.Second})
	defer driver.Close()
	createAvailable(t, driver, "first")
	waiters, unlock := lockObjects(t, dsn)
	var batch, reads sync.WaitGroup
	batch.Go(func() {
		if o, err := driver.Commit(t.Context(), create("second")); err != nil || o[0].Err != nil {
			t.Errorf("the batch under way: %v, %v", o, err)
		}
	})
	waiters(1)
	for range readers {
		reads.Go(func() {
			if _, _, err := driver.Get(t.Context(), create("first")[0].Key); !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Errorf("a read of the table: %v", err)
			}
		})
	}
	reads.Wait()
	unlock()
	batch.Wait()
}
