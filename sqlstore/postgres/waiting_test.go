package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/storetest"
)

// lockObjects locks the table of objects until unlock is called. waiting counts the statements that
// wait for a lock.
func lockObjects(t *testing.T, dsn string) (waiting func() int, unlock func()) {
	t.Helper()
	holder, admin := connect(t, dsn), connect(t, dsn)
	exec := func(statement string) {
		t.Helper()
		if _, err := holder.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`BEGIN; LOCK TABLE current_objects IN ACCESS EXCLUSIVE MODE`)
	return func() (n int) {
		t.Helper()
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}, func() { exec(`ROLLBACK`) }
}

// readers is more than the pool for reads has connections.
const readers = 12

// waitingReads are the reads that wait for the lock of lockObjects. Watches that resume read the
// changes of a resource, as many at a time as they need pages.
var waitingReads = map[string]func(context.Context, *postgres.Driver) error{
	"objects": func(ctx context.Context, d *postgres.Driver) error {
		_, _, err := d.Get(ctx, create("first")[0].Key)
		return err
	},
	"pages of history": func(ctx context.Context, d *postgres.Driver) error {
		_, err := d.Changes(ctx, sqlstore.ChangesQuery{Of: &sqlstore.Resource{Resource: "pods"}, Limit: 10})
		return err
	},
}

// startReads starts the reads one after the other, so that each of them finds the connections of
// those before it in use. It returns when eight wait for the lock, or one has ended. wait waits for
// the end of all.
func startReads(t *testing.T, waiting func() int, read func()) (wait func()) {
	t.Helper()
	var reads sync.WaitGroup
	var ended atomic.Bool
	for i := range readers {
		reads.Go(func() {
			defer ended.Store(true)
			read()
		})
		storetest.Eventually(t, "reads wait", func() bool { return ended.Load() || waiting() > min(i, 7) })
	}
	return reads.Wait
}

// State answers while other reads, which wait for the lock of a table, have all connections for
// reads.
func TestRead_WaitForATableKeepsTheFeed(t *testing.T) {
	t.Parallel()
	for name, read := range waitingReads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, dsn := open(t, postgres.Options{ReadTimeout: recovery})
			defer driver.Close()
			mustCreate(t, driver, "first")
			waiting, unlock := lockObjects(t, dsn)
			defer unlock()
			ctx, cancel := context.WithCancel(t.Context())
			defer startReads(t, waiting, func() {
				if err := read(ctx, driver); err == nil {
					t.Error("a read of the table ends")
				}
			})()
			defer cancel()
			asking, stop := context.WithTimeout(t.Context(), recovery/2)
			defer stop()
			if state, err := driver.State(asking); err != nil || state.Revision != 1 {
				t.Errorf("state: %+v, %v", state, err)
			}
		})
	}
}

// A server on which reads wait for the lock of a table is not taken for dead: a batch that began
// before the reads goes on.
func TestRead_WaitForATableIsNoSilence(t *testing.T) {
	t.Parallel()
	for name, read := range waitingReads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, dsn := open(t, postgres.Options{LockTimeout: recovery, CommitTimeout: recovery, ReadTimeout: 2 * time.Second})
			defer driver.Close()
			createAvailable(t, driver, "first")
			waiting, unlock := lockObjects(t, dsn)
			var batch sync.WaitGroup
			batch.Go(func() {
				if o, err := driver.Commit(t.Context(), create("second")); err != nil || o[0].Err != nil {
					t.Errorf("the batch under way: %v, %v", o, err)
				}
			})
			storetest.Eventually(t, "the batch waits", func() bool { return waiting() == 1 })
			startReads(t, func() int { return waiting() - 1 }, func() {
				if err := read(t.Context(), driver); !errors.Is(err, sqlstore.ErrUnavailable) {
					t.Errorf("a read of the table: %v", err)
				}
			})()
			unlock()
			batch.Wait()
		})
	}
}
