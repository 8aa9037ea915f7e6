package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
)

// recovery is the time within which reads and writes must work after a silent host answers
// again, or another host does. It takes ten seconds at most where the processors are free;
// TCP alone would take 15 minutes.
const recovery = time.Minute

// openThrough opens a driver on an empty database through proxies, which are its hosts.
func openThrough(t *testing.T, proxies int, options postgres.Options) (*postgres.Driver, []*pgtest.Proxy) {
	t.Helper()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	all := make([]*pgtest.Proxy, proxies)
	for i := range all {
		all[i] = pgtest.NewProxy(t, dsn)
	}
	driver := openMore(t, all[0].DSN(all[1:]...), options)
	t.Cleanup(func() { // before Close of the driver, which waits for the server
		for _, p := range all {
			p.Cut()
		}
	})
	return driver, all
}

// warm has the pool for reads open several connections.
func warm(t *testing.T, driver *postgres.Driver) {
	t.Helper()
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			_, err := driver.State(t.Context())
			for errors.Is(err, sqlstore.ErrUnavailable) && t.Context().Err() == nil { // on a busy machine, to connect may exceed the timeout
				_, err = driver.State(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
}

// untilAvailable repeats a read or a write until it succeeds. Each failure must be
// ErrUnavailable, for which a busy machine is enough where timeouts are short.
func untilAvailable(t *testing.T, work func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recovery)
	defer cancel()
	for {
		err := work(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("not available within %v: %v", recovery, err)
		}
		if !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// createAvailable creates an object as soon as the database is available.
func createAvailable(t *testing.T, driver *postgres.Driver, name string) {
	t.Helper()
	isUnknown := false
	untilAvailable(t, func(ctx context.Context) error {
		o, err := driver.Commit(ctx, create(name))
		switch {
		case errors.Is(err, sqlstore.ErrUnknown): // sent on a connection that the server was closing
			isUnknown = true
			return sqlstore.ErrUnavailable
		case err != nil:
			return err
		case isUnknown && errors.Is(o[0].Err, sqlstore.ErrExists):
			return nil
		}
		return o[0].Err
	})
}

// outcomeIsUnknown creates an object whose COMMIT gets no answer, and expects that the driver
// stops waiting for it.
func outcomeIsUnknown(t *testing.T, driver *postgres.Driver, name string) {
	t.Helper()
	committed := make(chan error, 1)
	go func() {
		_, err := driver.Commit(t.Context(), create(name))
		for errors.Is(err, sqlstore.ErrUnavailable) && t.Context().Err() == nil { // not sent
			_, err = driver.Commit(t.Context(), create(name))
		}
		committed <- err
	}()
	select {
	case err := <-committed:
		if !errors.Is(err, sqlstore.ErrUnknown) {
			t.Errorf("commit without an answer: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the commit waits for an answer that does not come")
	}
}
