package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// Reads from a host that stops answering end at their deadline, and succeed soon after the
// host answers again.
func TestSilentHost_ReadsEndAtTheirDeadline(t *testing.T) {
	t.Parallel()
	driver, proxies := openThrough(t, 1, postgres.Options{})
	warm(t, driver)
	proxies[0].Blackhole()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reads := map[string]func() error{
		"State": func() error { _, err := driver.State(ctx); return err },
		"Get":   func() error { _, _, err := driver.Get(ctx, create("a")[0].Key); return err },
		"Changes": func() error {
			_, err := driver.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: 10})
			return err
		},
		"Expired": func() error { _, err := driver.Expired(ctx, time.Time{}, time.Now(), 10); return err },
		"List": func() error {
			_, err := driver.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(sqlstore.Record) error {
				return nil
			})
			return err
		},
		"Notify": func() error { return driver.Notify(ctx, 1) },
		"Exclusively": func() error {
			_, err := driver.WithLock(ctx, "x", func(context.Context) error { return nil })
			return err
		},
	}
	var readers sync.WaitGroup
	for name, read := range reads {
		readers.Go(func() {
			if err := read(); !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	readers.Wait()
	if ctx.Err() != nil {
		t.Fatal("reads waited for longer than a minute")
	}
	proxies[0].Forward()
	untilAvailable(t, func(ctx context.Context) error { _, err := driver.State(ctx); return err })
}

// A connection whose read or write has timed out soon leaves the pool, even if its server
// does not answer. Otherwise a pool that is full of such connections could not connect to
// another host until pgx has closed them.
func TestSilentHost_PlacesAreFreedSoon(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, dsn)
	driver := openMore(t, proxy.DSN()+"&pool_max_conns=2", postgres.Options{
		LockTimeout: 2 * time.Second, CommitTimeout: 3 * time.Second, ReadTimeout: 3 * time.Second,
	})
	t.Cleanup(proxy.Cut)
	createAvailable(t, driver, "a")
	warm(t, driver)
	for name, work := range map[string]func(context.Context) error{
		"read": func(ctx context.Context) error { _, err := driver.State(ctx); return err },
		"write": func(ctx context.Context) error {
			_, err := driver.Commit(ctx, create(fmt.Sprint(time.Now().UnixNano())))
			return err
		},
	} {
		proxy.Blackhole()
		var all sync.WaitGroup
		for range 2 {
			if name == "write" {
				if err := work(t.Context()); err == nil {
					t.Errorf("%s of a silent host works", name)
				}
				continue
			}
			all.Go(func() {
				if err := work(t.Context()); err == nil {
					t.Errorf("%s of a silent host works", name)
				}
			})
		}
		all.Wait()
		proxy.Forward()
		untilAvailable(t, work)
	}
}

// The driver stops waiting for a commit to a server that does not answer when a later read
// has got no answer, and not only at the timeout of the commit. Otherwise it would not
// connect to another host.
func TestSilentHost_EndsTheCommitUnderWay(t *testing.T) {
	t.Parallel()
	driver, proxies := openThrough(t, 1, postgres.Options{CommitTimeout: 10 * time.Minute, ReadTimeout: 3 * time.Second})
	createAvailable(t, driver, "a")
	proxies[0].Set(pgtest.Failpoint{Statement: "COMMIT", Point: pgtest.Answered, Do: func() pgtest.Action {
		go proxies[0].Blackhole()
		return pgtest.Swallow
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			_, _ = driver.State(ctx)
		}
	})
	defer reading.Wait()
	defer cancel()
	outcomeIsUnknown(t, driver, "b")
	proxies[0].Forward()
	createAvailable(t, driver, "c")
}

// A read that timed out does not delay Close. The pool pings a connection that was idle, and
// that ping goes on after the read has ended.
func TestSilentHost_DoesNotDelayClose(t *testing.T) {
	t.Parallel()
	driver, proxies := openThrough(t, 1, postgres.Options{ReadTimeout: 2 * time.Second})
	warm(t, driver)
	<-time.After(1100 * time.Millisecond) // pgx pings a connection that was idle for a second
	proxies[0].Blackhole()
	if _, err := driver.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("State: %v", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- driver.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second): // pgx gives a connection 15 seconds to close
		t.Error("the driver does not close")
	}
}

// The driver uses that of several hosts which answers, also if it takes longer to reach that than a read may. The
// silent hosts do not delay Feed.Latest, whose callers share one round trip.
func TestSilentHosts_TheOtherIsUsed(t *testing.T) {
	t.Parallel()
	for _, silent := range []int{1, 2} {
		t.Run(fmt.Sprint(silent), func(t *testing.T) {
			t.Parallel()
			driver, proxies := openThrough(t, silent+1, postgres.Options{})
			feed := watch.New(driver, watch.Options{})
			dbtest.Serve(t, "feed", feed.Run)
			if _, err := feed.Latest(t.Context()); err != nil {
				t.Fatal(err)
			}
			warm(t, driver)
			for _, proxy := range proxies[:silent] {
				proxy.Blackhole()
			}
			untilAvailable(t, func(ctx context.Context) error { _, err := feed.Latest(ctx); return err })
			var outcome []sqlstore.Outcome
			untilAvailable(t, func(ctx context.Context) (err error) {
				outcome, err = driver.Commit(ctx, create("a"))
				return err
			})
			untilAvailable(t, func(ctx context.Context) error { return feed.WaitFor(ctx, outcome[0].Revision) })
			openMore(t, proxies[0].DSN(proxies[1:]...), postgres.Options{})
		})
	}
}

// A list has a deadline for each row that the server has to send, not for all rows. The
// time that the reader of the list takes does not count.
func TestList_DeadlineIsPerRow(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	driver, proxies := openThrough(t, 1, postgres.Options{ReadTimeout: timeout})
	large := strings.Repeat("x", 1<<20) // more than the sockets' buffers hold
	for i := range 16 {
		w := create(fmt.Sprint(i))
		w[0].Value = []byte(`"` + large + `"`)
		untilAvailable(t, func(ctx context.Context) error { _, err := driver.Commit(ctx, w); return err })
	}
	all := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}
	var n int
	untilAvailable(t, func(ctx context.Context) error {
		n = 0
		_, err := driver.List(ctx, all, func(sqlstore.Record) error {
			if n++; n == 1 {
				<-time.After(2 * timeout) // the reader is slow
			}
			return nil
		})
		return err
	})
	if n != 16 {
		t.Errorf("list with a slow reader: %d records", n)
	}
	n = 0
	if _, err := driver.List(t.Context(), all, func(sqlstore.Record) error {
		if n++; n == 1 {
			proxies[0].Blackhole()
		}
		return nil
	}); !errors.Is(err, sqlstore.ErrUnavailable) || n == 16 {
		t.Errorf("list from a host that dies: %d records, %v", n, err)
	}
}

// A read that gets no connection, because slow readers use all of them, says nothing about
// the server: the driver keeps waiting for the batch under way.
func TestRead_WaitForAConnectionIsNoSilence(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver := openMore(t, dsn+"&pool_max_conns=1", postgres.Options{LockTimeout: recovery, CommitTimeout: recovery})
	if o, err := driver.Commit(t.Context(), create("first")); err != nil || o[0].Err != nil {
		t.Fatal(o, err)
	}
	other := connect(t, dsn)
	if _, err := other.Exec(t.Context(), `BEGIN; LOCK TABLE store IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if o, err := driver.Commit(t.Context(), create("second")); err != nil || o[0].Err != nil {
			t.Errorf("commit: %v, %v", o, err)
		}
	})
	storetest.Eventually(t, "the commit waits for the lock", func() (waits bool) {
		if err := other.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'store'::regclass)`).Scan(&waits); err != nil {
			t.Error(err)
		}
		return waits
	})
	reading, done := make(chan struct{}), make(chan struct{})
	work.Go(func() {
		if _, err := driver.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}},
			func(sqlstore.Record) error {
				close(reading)
				<-done
				return nil
			}); err != nil {
			t.Errorf("list: %v", err)
		}
	})
	<-reading
	if _, _, err := driver.Get(t.Context(), create("first")[0].Key); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("a read without a connection: %v", err)
	}
	close(done)
	if _, err := other.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Error(err)
	}
	work.Wait()
}

// The holder of an advisory lock needs a second connection for its work. It gets one even if
// the pool for reads has only one connection.
func TestLocker_WorksWithTheSmallestPool(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2} {
		dsn := pgtest.DSN(t) + "&pool_max_conns=" + fmt.Sprint(size)
		if _, err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		driver := openMore(t, dsn, postgres.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a deadlock lasts forever
		defer cancel()
		var work sync.WaitGroup
		for _, name := range []string{"expire", "compact", "another"} {
			work.Go(func() {
				for i := range 20 {
					ran, err := driver.WithLock(ctx, name, func(ctx context.Context) error {
						if _, _, err := driver.DeleteHistory(ctx, sqlstore.Deletion{UpTo: 1, Limit: 1}); err != nil {
							return err
						}
						_, err := driver.Expired(ctx, time.Time{}, time.Now(), 1)
						return err
					})
					if !ran || err != nil {
						t.Errorf("pool of %d, %s %d: %v, %v", size, name, i, ran, err)
						return
					}
				}
			})
		}
		work.Wait()
	}
}

// To measure a large database takes longer than Options.ReadTimeout. The driver does not
// drop its connections for that.
func TestSize_SlowMeasureKeepsThePools(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, dsn).Exec(t.Context(), `CREATE FUNCTION pg_total_relation_size(oid) RETURNS bigint LANGUAGE sql
AS 'SELECT CASE WHEN $1 = ''store''::regclass THEN 9000::bigint ELSE 0 END FROM (SELECT pg_sleep(1.5)) slept'`); err != nil {
		t.Fatal(err)
	}
	driver := openMore(t, dsn+"&options=-csearch_path%3Dpublic,pg_catalog", postgres.Options{ReadTimeout: 4 * time.Second})
	if size, err := driver.Size(t.Context()); err != nil || size != 9000 {
		t.Errorf("size: %d, %v", size, err)
	}
}

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
			driver, dsn := open(t,
				postgres.Options{LockTimeout: recovery, CommitTimeout: recovery, ReadTimeout: 2 * time.Second})
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

// After many reads at the same time the poll keeps one connection. The pool closes the others
// within the idle time and a check period, although each check changes which connection the
// poll uses. The times in this test are a tenth of the defaults.
func TestDriver_KeepsOneConnectionForThePoll(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver := openMore(t, dsn+"&application_name=polled&pool_max_conn_idle_time=500ms&pool_health_check_period=1s",
		postgres.Options{})
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
