package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// A primary fails with commits that its asynchronous standby does not have, and the standby
// is promoted. Another process, which has seen none of them, begins a new epoch before it writes. The
// driver that has seen the lost commits follows it: its feed ends the subscriptions and reads the
// state again.
func TestFailover_LosingCommitsBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	old, next := pgtest.NewProxy(t, dsn), pgtest.NewProxy(t, standby.DSN("postgres"))
	if _, err := postgres.Open(t.Context(), next.DSN(), postgres.Options{}); !errors.Is(err, sqlstore.ErrUnavailable) || !strings.Contains(err.Error(), "standby") {
		t.Fatalf("a standby alone: %v", err)
	}
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	driver := openMore(t, next.DSN(old), postgres.Options{Logger: logger}) // finds the primary
	// other has seen no change.
	other := openMore(t, pgtest.NewProxy(t, standby.DSN("postgres")).DSN(pgtest.NewProxy(t, dsn)), postgres.Options{Logger: logger})
	if !strings.Contains(log.String(), "no standby is synchronous") {
		t.Errorf("no warning at start: %s", &log)
	}
	ctx, cancel := context.WithCancel(t.Context())
	feed := watch.New(driver, watch.Options{Logger: logger})
	var running sync.WaitGroup
	running.Go(func() {
		if err := feed.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	haltStandby(t, standby, mustCreate(t, driver, "a", "b"))
	lost := mustCreate(t, driver, "lost", "lost too")
	pods := sqlstore.Resource{Resource: "pods"}
	snapshot := func() watch.Snapshot {
		var s watch.Snapshot
		untilAvailable(t, func(ctx context.Context) (err error) {
			if _, err = feed.Latest(ctx); err == nil {
				s, err = feed.Snapshot(ctx, pods)
			}
			return err
		})
		return s
	}
	if s := snapshot(); s.Len() != 4 || s.Revision() != lost {
		t.Fatalf("%d objects at %d", s.Len(), s.Revision())
	}
	sub, err := feed.Subscribe(ctx, watch.Interest{Resource: pods}, lost)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	before, err := driver.State(ctx)
	if err != nil {
		t.Fatal(err)
	}

	next.Blackhole() // otherwise the feed's poll would begin the epoch before the other process writes
	failOver(t, primary, standby)
	// The other process may have a connection to the old primary. It notices that it is
	// broken by a write that fails, which does not happen.
	storetest.EventuallyDone(t, "the other process writes", func(ctx context.Context) (bool, error) {
		o, err := other.Commit(ctx, create("x"))
		return err == nil && o[0].Err == nil, err
	})
	if again := mustCreate(t, other, "y", "z"); again <= lost+1 {
		t.Fatalf("the new primary gives revision %d again", again)
	}
	next.Forward()

	s := snapshot()
	if s.Len() != 5 || s.Get("n", "lost") != nil || s.Get("n", "x") == nil || s.Revision() <= lost+1 {
		t.Errorf("%d objects at %d", s.Len(), s.Revision())
	}
	deadline, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if events, _, err := sub.Next(deadline); !errors.Is(err, watch.ErrCompacted) {
		t.Errorf("subscription: %v, %v", events, err)
	}
	if state, err := driver.State(ctx); err != nil || state.Epoch == before.Epoch || state.Compacted < lost {
		t.Errorf("state: %+v, %v", state, err)
	}
	if !strings.Contains(log.String(), "a new epoch begins") {
		t.Errorf("the log says nothing:\n%s", &log)
	}
	mustCreate(t, driver, "after")
	if s := snapshot(); s.Get("n", "after") == nil {
		t.Error("what was written afterwards is not there")
	}
}

// A compaction on a server that has lost commits fails and begins a new epoch. If it
// succeeded, it would move the revision past the lost commits, and no process could notice
// the loss.
func TestFailover_CompactionFindsLostCommits(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, dsn)
	driver := openMore(t, proxy.DSN(), postgres.Options{})
	last := mustCreate(t, driver, "a", "b", "c", "d")
	before, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proxy.Set(pgtest.Failpoint{Statement: "begin", Point: pgtest.Sent, Do: func() pgtest.Action {
		for _, table := range []string{"current_objects", "undo_log"} {
			if _, err := connect(t, dsn).Exec(t.Context(), `DELETE FROM `+table+` WHERE revision > 2`); err != nil {
				t.Error(err)
			}
		}
		return pgtest.Forward
	}})
	deletion := sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: last, Limit: 100}
	if n, _, err := driver.DeleteHistory(t.Context(), deletion); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("deletion: %d, %v", n, err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Epoch == before.Epoch || state.Revision <= last {
		t.Errorf("state %+v, %v", state, err)
	}
}
