package postgres_test

import (
	"context"
	"errors"
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

// openPooled migrates an empty database through PgBouncer in transaction mode, and opens it
// through PgBouncer.
func openPooled(t *testing.T, options postgres.Options) (*postgres.Driver, *pgtest.Pooler) {
	t.Helper()
	pooler := pgtest.NewPooler(t, pgtest.DSN(t))
	if _, err := migrations.Up(t.Context(), pooler.DSN()); err != nil {
		t.Fatal(err)
	}
	driver, err := postgres.Open(t.Context(), pooler.DSN(), options)
	if err != nil {
		t.Fatal(err)
	}
	return driver, pooler
}

// Behind a pooler in transaction mode LISTEN is lost, because the pooler gives the session
// to other clients. The poll still finds what another replica writes.
func TestPooler_ChangesArriveWithoutHints(t *testing.T) {
	t.Parallel()
	driver, pooler := openPooled(t, postgres.Options{})
	defer driver.Close()
	other := openMore(t, pooler.DSN(), postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	feed := watch.New(driver, watch.Options{})
	var running sync.WaitGroup
	running.Go(func() {
		if err := feed.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	sub, err := feed.Subscribe(ctx, watch.Interest{Resource: sqlstore.Resource{Resource: "pods"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for want := int64(1); want <= 3; want++ {
		mustCreate(t, other, string(rune('a'+want)))
		deadline, stop := context.WithTimeout(ctx, time.Minute)
		events, _, err := sub.Next(deadline)
		stop()
		if err != nil || len(events) != 1 || events[0].Revision != want {
			t.Fatalf("events %v, %v; want revision %d", events, err, want)
		}
	}
}

// Behind a pooler describe_exec may execute the statement of another client, and show its rows.
func TestPooler_RefusesDescribeExec(t *testing.T) {
	t.Parallel()
	driver, pooler := openPooled(t, postgres.Options{})
	defer driver.Close()
	_, err := postgres.Open(t.Context(), pooler.DSN()+"&default_query_exec_mode=describe_exec", postgres.Options{})
	if err == nil || !strings.Contains(err.Error(), "remove it from the endpoint") {
		t.Errorf("describe_exec behind a pooler: %v", err)
	}
	openMore(t, pooler.DSN()+"&default_query_exec_mode=cache_describe", postgres.Options{})
}

// An advisory lock belongs to a transaction, which a pooler keeps on one session: no two
// processes hold it at the same time.
func TestPooler_LocksByName(t *testing.T) {
	t.Parallel()
	driver, pooler := openPooled(t, postgres.Options{})
	defer driver.Close()
	other := openMore(t, pooler.DSN(), postgres.Options{})
	ran, err := driver.WithLock(t.Context(), "x", func(ctx context.Context) error {
		if ran, err := other.WithLock(ctx, "x", func(context.Context) error { return nil }); ran || err != nil {
			t.Errorf("the lock while another process holds it: ran %v, %v", ran, err)
		}
		return nil
	})
	if !ran || err != nil {
		t.Errorf("the first: ran %v, %v", ran, err)
	}
}

// While the pooler is down the database is unavailable; afterwards the driver continues.
func TestPooler_Outage(t *testing.T) {
	t.Parallel()
	driver, pooler := openPooled(t, postgres.Options{})
	defer driver.Close()
	mustCreate(t, driver, "a")
	pooler.Kill()
	// The outcome is unknown if the driver sends the batch before it notices that the
	// connection has ended.
	if _, err := driver.Commit(t.Context(), create("b")); !errors.Is(err, sqlstore.ErrUnavailable) &&
		!errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("commit: %v", err)
	}
	if _, err := driver.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("state: %v", err)
	}
	if err := pooler.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilAvailable(t, func(ctx context.Context) error { _, err := driver.State(ctx); return err })
	if last := mustCreate(t, driver, "c"); last != 2 {
		t.Errorf("revision %d", last)
	}
}

// When a pooler dies under load, every acknowledged write is there and no refused one is.
func TestPooler_KeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	site := pgtest.NewSite(t, pgtest.SiteConfig{Replicas: 2})
	if _, err := migrations.Up(t.Context(), site.DSN(0)); err != nil {
		t.Fatal(err)
	}
	pooler := pgtest.NewPooler(t, site.Primary.DSN("postgres"))
	w := startWritersOn(t, pooler.DSN(), pooler.DSN())
	for range 5 {
		w.awaitWrites(t, 5)
		pooler.Kill()
		if err := pooler.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.awaitWrites(t, 5)
	w.stop(t)
	w.check(t)
}

// PgBouncer's own connection breaks after the server has committed, and before PgBouncer has
// passed on any answer. PgBouncer then answers with an error of its own, which does not prove
// that nothing happened.
func TestPooler_BrokenBehindItIsUnknown(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, dsn)
	driver := openMore(t, pgtest.NewPooler(t, proxy.DSN()).DSN(), postgres.Options{})
	mustCreate(t, driver, "a")
	admin := openMore(t, dsn, postgres.Options{})
	isThere := func(ctx context.Context) (bool, error) {
		_, _, err := admin.Get(ctx, create("b")[0].Key)
		if errors.Is(err, sqlstore.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	proxy.Set(pgtest.Failpoint{Statement: "FOR UPDATE", Point: pgtest.Answered, Do: func() pgtest.Action {
		storetest.EventuallyDone(t, "the commit", isThere)
		return pgtest.Drop
	}})
	if _, err := driver.Commit(t.Context(), create("b")); !errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("commit: %v", err)
	}
}
