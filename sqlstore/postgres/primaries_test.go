package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

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
		if last := mustCreate(t, openMore(t, endpoint, postgres.Options{}), "start at "+endpoint[len(endpoint)-40:]); last == 0 {
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
	if err := connect(t, dsn).QueryRow(t.Context(), `SELECT count(*) FROM current_objects WHERE name <> 'a'`).Scan(&written); err != nil || written > 0 {
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
