package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	if _, err := postgres.Open(t.Context(), next.DSN(), postgres.Options{}); !errors.Is(err, sqlstore.ErrUnavailable) ||
		!strings.Contains(err.Error(), "standby") {
		t.Fatalf("a standby alone: %v", err)
	}
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	driver := openMore(t, next.DSN(old), postgres.Options{Logger: logger}) // finds the primary
	// other has seen no change.
	other := openMore(t, pgtest.NewProxy(t, standby.DSN("postgres")).DSN(pgtest.NewProxy(t, dsn)),
		postgres.Options{Logger: logger})
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

// TestPrimaries_FollowsTheHigherTimeline: a standby is promoted, and the old primary comes back and takes writes too. A
// process that has served the new one does not go back, whichever host is first in its endpoint, and one that starts
// takes the new one.
func TestPrimaries_FollowsTheHigherTimeline(t *testing.T) {
	t.Parallel()
	old, promoted, dsn := startPair(t)
	first, second := pgtest.NewProxy(t, dsn), pgtest.NewProxy(t, promoted.DSN("postgres"))
	var log syncBuffer
	registry := prometheus.NewRegistry()
	options := postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Registerer: registry}
	driver := openMore(t, first.DSN(second), options)
	behindPooler := openMore(t, pgtest.NewPooler(t, first.DSN()).DSN(), postgres.Options{})
	haltStandby(t, promoted, mustCreate(t, driver, "a"))
	failOver(t, old, promoted)
	first.Lead(t, promoted.DSN("postgres"))
	for _, d := range []*postgres.Driver{driver, behindPooler} {
		untilAvailable(t, func(ctx context.Context) error { _, err := d.State(ctx); return err })
	}
	createAvailable(t, driver, "b")
	if n := gauge(t, registry); n != 0 {
		t.Errorf("%d primaries are refused before there are two", n)
	}

	// The old primary comes back, and every connection is made again.
	first.Lead(t, dsn)
	if err := old.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Drop()
	second.Drop()
	createAvailable(t, driver, "c")
	storetest.EventuallyDone(t, "the metric", func(context.Context) (bool, error) { return gauge(t, registry) == 1, nil })
	if text := log.String(); strings.Count(text, "two primaries") != 1 || !strings.Contains(text, "timeline 1") {
		t.Errorf("the log:\n%s", text)
	}
	// A pooler that leads to the old one alone is refused by the statements.
	storetest.EventuallyDone(t, "the process behind a pooler", func(ctx context.Context) (bool, error) {
		_, err := behindPooler.Commit(ctx, create("lost"))
		return err != nil && strings.Contains(err.Error(), "two primaries"), nil
	})
	if _, err := behindPooler.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("a read of the old primary: %v", err)
	}
	for _, endpoint := range []string{first.DSN(second), second.DSN(first)} {
		if last := mustCreate(t, openMore(t, endpoint, postgres.Options{}),
			"start at "+endpoint[len(endpoint)-40:]); last == 0 {
			t.Error("no revision")
		}
		if err := postgres.ReadSnapshot(t.Context(), endpoint, func(s sqlstore.Snapshot) error {
			if _, _, err := s.Get(t.Context(), create("c")[0].Key); err != nil {
				t.Errorf("a backup of %s: %v", endpoint, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	var written int
	if err := connect(t, dsn).QueryRow(t.Context(),
		`SELECT count(*) FROM current_objects WHERE name <> 'a'`).Scan(&written); err != nil || written > 0 {
		t.Errorf("the old primary has %d objects that it was not to get, %v", written, err)
	}

	// Without the new primary there is none to follow.
	if err := promoted.Halt(); err != nil {
		t.Fatal(err)
	}
	second.Drop()
	storetest.EventuallyDone(t, "unavailable", func(ctx context.Context) (bool, error) {
		_, err := driver.State(ctx)
		if err != nil && !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Error(err)
		}
		return err != nil && strings.Contains(err.Error(), "two primaries"), nil
	})
}

func gauge(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "byre_store_refused_primaries" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	t.Fatal("no metric")
	return 0
}

// startPair starts a PostgreSQL server with an asynchronous standby for one test, and migrates
// the database.
func startPair(t *testing.T) (primary, standby *pgtest.Cluster, dsn string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	primary, dsn = startCluster(t)
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, standby)
	return primary, standby, dsn
}

// haltStandby stops the standby once it has received a revision. What the primary commits
// after that is lost when the standby is promoted.
func haltStandby(t *testing.T, standby *pgtest.Cluster, revision int64) {
	t.Helper()
	storetest.EventuallyDone(t, "replication", func(ctx context.Context) (bool, error) {
		var replicated int64
		err := connect(t, standby.DSN("postgres")).QueryRow(ctx, `SELECT revision FROM counters`).Scan(&replicated)
		return replicated == revision, err
	})
	if err := standby.Halt(); err != nil {
		t.Logf("halt: %v", err)
	}
}

// failOver stops the primary, and starts and promotes the standby.
func failOver(t *testing.T, primary, standby *pgtest.Cluster) {
	t.Helper()
	if err := primary.Halt(); err != nil {
		t.Logf("halt: %v", err)
	}
	if err := errors.Join(standby.Resume(t.Context()), standby.Promote(t.Context())); err != nil {
		t.Fatal(err)
	}
}
