package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

func create(name string) []sqlstore.Write {
	return []sqlstore.Write{{
		Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "n", Name: name}, Value: []byte(`{}`),
	}}
}

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// openMore opens a driver of another process on the same database.
func openMore(t *testing.T, dsn string, options postgres.Options) *postgres.Driver {
	t.Helper()
	driver, err := postgres.Open(t.Context(), dsn, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	return driver
}

func TestOpen_RefusesUnsafeServers(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := postgres.Open(t.Context(), dsn, postgres.Options{}); !errors.Is(err, migrations.ErrOlder) {
		t.Errorf("empty database: %v", err)
	}
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	unsafe := dsn + "&options=" + "-c%20synchronous_commit%3Doff"
	if _, err := postgres.Open(t.Context(), unsafe, postgres.Options{}); err == nil ||
		!strings.Contains(err.Error(), "synchronous_commit is off") {
		t.Errorf("synchronous_commit off: %v", err)
	}
	openMore(t, unsafe, postgres.Options{AllowLoss: true})
	if _, err := connect(t, dsn).Exec(t.Context(),
		`UPDATE byre_schema_version SET version = 999; UPDATE store SET least_version = 999`); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Open(t.Context(), dsn, postgres.Options{}); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("newer: %v", err)
	}
	if _, err := postgres.Open(t.Context(), "postgres://u:secret@127.0.0.1:1/x", postgres.Options{}); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("nobody there: %v", err)
	}
}

// Several processes that write at the same time give one dense sequence of revisions. A
// snapshot that shows a revision shows all before it.
func TestWriters_MakeOneDenseSequence(t *testing.T) {
	t.Parallel()
	first, dsn := open(t, postgres.Options{})
	defer first.Close()
	drivers := []*postgres.Driver{first, openMore(t, dsn, postgres.Options{}), openMore(t, dsn, postgres.Options{})}
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	readers.Go(func() {
		for ctx.Err() == nil {
			n := int64(0)
			listed, err := first.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(sqlstore.Record) error {
				n++
				return nil
			})
			if err == nil && n != listed.Revision {
				t.Errorf("%d records at revision %d", n, listed.Revision)
			}
		}
	})
	createDense(t, drivers)
	cancel()
	readers.Wait()
}

// createDense creates objects by all drivers at the same time, in an empty database, and checks that
// their changes are one dense sequence.
func createDense(t *testing.T, drivers []*postgres.Driver) {
	t.Helper()
	const each = 60
	var writers sync.WaitGroup
	for id, d := range drivers {
		writers.Go(func() {
			for i := range each {
				if o, err := d.Commit(t.Context(), create(fmt.Sprint(id, "-", i))); err != nil || o[0].Err != nil {
					t.Error(o, err)
				}
			}
		})
	}
	writers.Wait()
	changes, err := drivers[0].Changes(t.Context(), sqlstore.ChangesQuery{After: 0, Limit: 1000})
	if err != nil || len(changes) != each*len(drivers) {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	for i, c := range changes {
		if c.Revision != int64(i+1) || i > 0 && c.Time.Before(changes[i-1].Time) {
			t.Errorf("change %d has revision %d at %v", i, c.Revision, c.Time)
		}
	}
}

// A process that is stopped while it holds the writers' lock loses the lock after the lock
// timeout. A process that works does not lose it. A statement_timeout of the role changes neither.
func TestWriters_StoppedHolderLosesTheLock(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	driver := openMore(t, dsn+"&options=-c%20statement_timeout%3D800ms", postgres.Options{LockTimeout: time.Second})
	stopped := connect(t, dsn)
	if _, err := stopped.Exec(t.Context(), `BEGIN; SELECT revision FROM store FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	// Without the driver the lock would be held until TCP gives up, for minutes.
	createAvailable(t, driver, "a")
	if _, err := stopped.Exec(t.Context(), `COMMIT`); err == nil {
		t.Error("the holder's session is still there")
	}

	working := connect(t, dsn)
	if _, err := working.Exec(t.Context(), `BEGIN; SELECT revision FROM store FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		_, err := working.Exec(t.Context(), `SELECT pg_sleep(600)`)
		var canceled *pgconn.PgError
		if !errors.As(err, &canceled) || canceled.Code != "57014" {
			t.Errorf("the session of a process at work: %v", err)
		}
		if _, err := working.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Error(err)
		}
	})
	admin := connect(t, dsn)
	storetest.EventuallyDone(t, "the holder works", func(ctx context.Context) (works bool, err error) {
		err = admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep')`,
			int(working.PgConn().PID())).Scan(&works)
		return works, err
	})
	if _, err := driver.Commit(t.Context(), create("b")); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("commit while another works: %v", err)
	}
	if _, err := admin.Exec(t.Context(), `SELECT pg_cancel_backend($1)`, int(working.PgConn().PID())); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if o, err := driver.Commit(t.Context(), create("b")); err != nil || o[0].Revision != 2 {
		t.Error(o, err)
	}
}

// A statement_timeout of the role or the database does not end a read.
func TestReads_OutliveAStatementTimeout(t *testing.T) {
	t.Parallel()
	for name, through := range map[string]func(dsn string) string{
		"directly":         func(dsn string) string { return dsn },
		"through a pooler": func(dsn string) string { return pgtest.NewPooler(t, dsn).DSN() },
	} {
		t.Run(name, func(t *testing.T) {
			dsn := migrated(t)
			admin, locker := connect(t, dsn), connect(t, dsn)
			if _, err := admin.Exec(t.Context(), `DO $$ BEGIN
EXECUTE format('ALTER DATABASE %I SET statement_timeout = ''800ms''', current_database()); END $$`); err != nil {
				t.Fatal(err)
			}
			driver := openMore(t, through(dsn), postgres.Options{})
			if _, err := locker.Exec(t.Context(), `BEGIN; LOCK TABLE current_objects IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			var reading sync.WaitGroup
			reading.Go(func() {
				if _, err := driver.Usage(t.Context()); err != nil {
					t.Error(err)
				}
			})
			storetest.EventuallyDone(t, "the read waits", func(ctx context.Context) (waits bool, err error) {
				err = admin.QueryRow(ctx,
					`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
				return waits, err
			})
			if _, err := admin.Exec(t.Context(), `SELECT pg_sleep(1)`); err != nil {
				t.Error(err)
			}
			if _, err := locker.Exec(t.Context(), `COMMIT`); err != nil {
				t.Error(err)
			}
			reading.Wait()
		})
	}
}

func TestLocker_RunsOneAtATime(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	other := openMore(t, dsn, postgres.Options{})
	ran, err := driver.WithLock(t.Context(), "expire", func(ctx context.Context) error {
		ran, err := other.WithLock(ctx, "expire", func(context.Context) error { return nil })
		if ran || err != nil {
			t.Errorf("another process ran under the same name: %v, %v", ran, err)
		}
		ran, err = other.WithLock(ctx, "compact", func(context.Context) error { return errors.New("mine") })
		if !ran || err == nil || err.Error() != "mine" {
			t.Errorf("another name: %v, %v", ran, err)
		}
		return nil
	})
	if !ran || err != nil {
		t.Errorf("the first: %v, %v", ran, err)
	}
	if ran, err := other.WithLock(t.Context(), "expire", func(context.Context) error { return nil }); !ran || err != nil {
		t.Errorf("afterwards: %v, %v", ran, err)
	}
}

// useStore has a connection hold the in-use lock of a schema, as another process would.
func useStore(t *testing.T, conn *pgx.Conn, schema string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(),
		`SELECT pg_advisory_lock_shared(hashtextextended('byre ' || $1::text || ' ' || $2::text, 0))`,
		schema, migrations.UseLock); err != nil {
		t.Fatal(err)
	}
}

// listen has a driver listen until the test ends. expect waits for the next hint.
func listen(t *testing.T, driver *postgres.Driver) (expect func(want int64)) {
	t.Helper()
	hints := make(chan int64, 100)
	var listening sync.WaitGroup
	t.Cleanup(listening.Wait) // t.Context() has ended then
	listening.Go(func() {
		if err := driver.Listen(t.Context(), func(revision int64) { hints <- revision }); err != nil {
			t.Errorf("listen: %v", err)
		}
	})
	return func(want int64) {
		t.Helper()
		if got := <-hints; got != want {
			t.Errorf("hint of %d, want %d", got, want)
		}
	}
}

// A process sends hints while another one uses the database, and none while it is alone.
func TestHints_NotSentWhileAlone(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{LockTimeout: time.Second})
	defer driver.Close()
	other := openMore(t, dsn, postgres.Options{}) // listens, but does not hold the lock
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	expect := listen(t, other)
	running.Go(func() {
		if err := driver.Maintain(ctx); err != nil {
			t.Errorf("maintain: %v", err)
		}
	})
	notify := func(revision int64) {
		t.Helper()
		if err := driver.Notify(ctx, revision); err != nil {
			t.Error(err)
		}
	}
	isAlone := func(want bool) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) { return driver.IsAlone() == want, nil }
	}
	expect(0)
	notify(1) // the driver does not know yet whether it is alone
	expect(1)
	storetest.EventuallyDone(t, "the process is alone", isAlone(true))
	notify(2)
	conn := connect(t, dsn)
	useStore(t, conn, "another schema")
	useStore(t, conn, currentSchema(t, conn))
	storetest.EventuallyDone(t, "there is another process", isAlone(false))
	notify(3)
	expect(3)
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the process is alone again", isAlone(true))
	cancel()
	running.Wait()
	if driver.IsAlone() {
		t.Error("a process that does not hold the lock says that it is alone")
	}
}

func currentSchema(t *testing.T, conn *pgx.Conn) (schema string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

// A Store notifies other processes of its commits. A listener reconnects after its session
// was terminated, and then gets the hint 0, because it may have missed some.
func TestHints_ReachOtherProcesses(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	other := openMore(t, dsn, postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	expect := listen(t, other)
	conn := connect(t, dsn)
	useStore(t, conn, currentSchema(t, conn))
	store := sqlstore.New(driver, sqlstore.Options{})
	running.Go(func() {
		if err := store.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	expect(0)
	if _, err := store.Commit(ctx, create("a")[0]); err != nil {
		t.Fatal(err)
	}
	expect(1)
	if _, err := connect(t, dsn).Exec(ctx, `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN%'`); err != nil {
		t.Fatal(err)
	}
	expect(0)
	if _, err := store.Commit(ctx, create("b")[0]); err != nil {
		t.Fatal(err)
	}
	expect(2)
	cancel()
	running.Wait()
}

// A lock that is taken now and then leaves no idle connection, whatever the limits of the
// pool are. Locks that are taken often use one connection again and again.
func TestWithLock_LeavesNoIdleConnection(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	driver := openMore(t, dsn+"&application_name=tenant&pool_max_conn_idle_time=1h", postgres.Options{})
	if _, err := driver.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := connect(t, dsn)
	expect := func(when string, want int) {
		t.Helper()
		storetest.EventuallyDone(t, when, func(ctx context.Context) (bool, error) {
			counts, err := connections(ctx, admin)
			return counts["tenant"] == want, err
		})
	}
	const idle = 2 // one connection of the pool for reads, and one of the writer's pool
	expect("only the connections of the pools are left", idle)
	for _, after := range []int{idle, idle + 1} { // the second one comes soon
		ran, err := driver.WithLock(t.Context(), "x", func(context.Context) error {
			expect("a connection holds the lock", idle+1)
			return nil
		})
		if !ran || err != nil {
			t.Fatal(ran, err)
		}
		expect("after the lock", after)
	}
}

// Neon turns fsync off, because its safekeepers have the log. A server that only has fsync off
// is refused, whatever else it says.
func TestOpen_AcceptsNeonWithoutFsync(t *testing.T) {
	t.Parallel()
	_, dsn := startCluster(t)
	admin := connect(t, dsn)
	open := func(parameters string) error {
		driver, err := postgres.OpenWithoutServing(t.Context(), dsn+parameters, postgres.Options{})
		if err == nil {
			err = driver.Close()
		}
		return err
	}
	refused := func(when, parameters string) {
		t.Helper()
		if err := open(parameters); err == nil || !strings.Contains(err.Error(), "fsync is off") {
			t.Errorf("%s: %v", when, err)
		}
	}
	const neon = "&options=-cneon.timeline_id%3Dde6fa815c1e45aa61491c3d34c4eb33e"
	set(t, admin, "fsync", "off")
	refused("without fsync", "")
	refused("without safekeepers", neon)
	set(t, admin, "synchronous_standby_names", "walproposer")
	if err := open(neon); err != nil {
		t.Errorf("with safekeepers: %v", err)
	}
	refused("commits that do not wait for the safekeepers", neon+"%20-csynchronous_commit%3Dlocal")
	refused("a standby of that name", "")
}
