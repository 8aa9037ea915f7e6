package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// startCluster starts a PostgreSQL server for one test and migrates its database.
func startCluster(t *testing.T) (cluster *pgtest.Cluster, dsn string) {
	t.Helper()
	pgtest.DSN(t) // skips the test where there is no PostgreSQL
	cluster, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, cluster)
	dsn = cluster.DSN("postgres")
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return cluster, dsn
}

func stopAtEnd(t testing.TB, cluster *pgtest.Cluster) {
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Logf("stop: %v", err) // the shell reports the signal that ended the server
		}
	})
}

// set changes a setting of the server and waits until new sessions have it.
func set(t *testing.T, conn *pgx.Conn, name, value string) {
	t.Helper()
	for _, statement := range []string{`ALTER SYSTEM SET ` + name + ` = '` + value + `'`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	storetest.EventuallyDone(t, name, func(ctx context.Context) (bool, error) {
		var now string
		err := conn.QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&now)
		return now == value, err
	})
}

// waiting returns how many commits wait for a synchronous standby.
func waiting(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// requireStandby makes commits wait for a standby that does not exist. Sessions show the new
// setting before the checkpointer has applied it. requireStandby therefore commits until one
// commit waits, and then cancels that wait.
func requireStandby(t *testing.T, dsn string, admin *pgx.Conn) {
	t.Helper()
	set(t, admin, "synchronous_standby_names", "nobody")
	probe := connect(t, dsn)
	var waited atomic.Bool
	var probing sync.WaitGroup
	probing.Go(func() {
		for !waited.Load() {
			// The cancel request below may end the statement instead of the wait after it.
			if _, err := probe.Exec(t.Context(), `SELECT pg_logical_emit_message(true, 'test', '')`); err != nil &&
				!waited.Load() {
				t.Errorf("commit of the probe: %v", err)
				return
			}
		}
	})
	storetest.EventuallyDone(t, "a commit that waits", func(context.Context) (bool, error) {
		return waiting(t, admin) == 1, nil
	})
	waited.Store(true)
	if _, err := admin.Exec(t.Context(), `SELECT pg_cancel_backend($1)`, int(probe.PgConn().PID())); err != nil {
		t.Fatal(err)
	}
	probing.Wait()
}

// Nothing cancels a COMMIT that waits for its standby: neither the caller's context, nor
// the driver's timeout, nor a statement_timeout of the role. The caller gets an unknown
// outcome, and the write is invisible until the standby has it.
func TestCommit_IsNotCancelled(t *testing.T) {
	t.Parallel()
	_, dsn := startCluster(t)
	admin := connect(t, dsn)
	if _, err := admin.Exec(t.Context(), `ALTER ROLE byre SET statement_timeout = '1s'`); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, dsn)
	driver := openMore(t, proxy.DSN(), postgres.Options{LockTimeout: 2 * time.Second, CommitTimeout: 5 * time.Second})
	if o, err := driver.Commit(t.Context(), create("before")); err != nil || o[0].Revision != 1 {
		t.Fatal(o, err)
	}
	requireStandby(t, dsn, admin)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	committed := make(chan error, 1)
	go func() {
		_, err := driver.Commit(ctx, create("a"))
		committed <- err
	}()
	storetest.EventuallyDone(t, "the commit's wait", func(context.Context) (bool, error) {
		return waiting(t, admin) == 1, nil
	})
	cancel()
	if err := <-committed; !errors.Is(err, sqlstore.ErrUnknown) {
		t.Fatalf("commit without a standby: %v", err)
	}
	<-proxy.Closed() // a cancel request would have arrived before
	if n := proxy.Cancels(); n > 0 {
		t.Errorf("%d cancel requests", n)
	}
	if n := waiting(t, admin); n != 1 {
		t.Errorf("%d commits wait, want 1", n)
	}
	var pid uint32
	if err := admin.QueryRow(t.Context(),
		`SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if done, err := driver.IsDone(t.Context(), pid); done || err != nil {
		t.Errorf("a session whose COMMIT waits for a standby is done: %v, %v", done, err)
	}
	if _, _, err := driver.Get(t.Context(), create("a")[0].Key); !errors.Is(err, sqlstore.ErrNotFound) {
		t.Errorf("what is not replicated is visible: %v", err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != 1 {
		t.Errorf("state: %+v, %v", state, err)
	}
	// The next batch waits for the lock, which it does not get.
	if _, err := driver.Commit(t.Context(), create("b")); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("commit behind it: %v", err)
	}

	set(t, admin, "synchronous_standby_names", "")
	storetest.EventuallyDone(t, "the commit's end", func(ctx context.Context) (bool, error) {
		_, revision, err := driver.Get(ctx, create("a")[0].Key)
		return err == nil && revision == 2, err
	})
	if o, err := driver.Commit(t.Context(), create("b")); err != nil || o[0].Revision != 3 {
		t.Error(o, err)
	}
}

// An operator cancels the wait of a COMMIT for its standby. The server then shows what is not replicated, and answers
// as if it were, with a warning: the write is not acknowledged.
func TestCommit_CancelledByOthersIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	_, dsn := startCluster(t)
	admin := connect(t, dsn)
	driver := openMore(t, dsn, postgres.Options{})
	if o, err := driver.Commit(t.Context(), create("before")); err != nil || o[0].Revision != 1 {
		t.Fatal(o, err)
	}
	requireStandby(t, dsn, admin)
	committed := make(chan error, 1)
	go func() {
		_, err := driver.Commit(t.Context(), create("a"))
		committed <- err
	}()
	storetest.EventuallyDone(t, "the commit's wait", func(context.Context) (bool, error) {
		return waiting(t, admin) == 1, nil
	})
	if _, err := admin.Exec(t.Context(),
		`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; !errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("a commit that no standby has: %v", err)
	}
	set(t, admin, "synchronous_standby_names", "")
	storetest.EventuallyDone(t, "a commit", func(ctx context.Context) (bool, error) {
		o, err := driver.Commit(ctx, create("b"))
		return err == nil && o[0].Revision == 3, err
	})
}

// The driver logs a warning if the server has standbys and none of them is synchronous.
func TestOpen_WarnsOfPossibleLoss(t *testing.T) {
	t.Parallel()
	_, dsn := startCluster(t)
	proxies := []*pgtest.Proxy{pgtest.NewProxy(t, dsn), pgtest.NewProxy(t, dsn)}
	logged := func(dsn string) string {
		var log strings.Builder
		openMore(t, dsn, postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		return log.String()
	}
	if log := logged(proxies[0].DSN()); log != "" {
		t.Errorf("one host without standbys: %s", log)
	}
	if log := logged(proxies[0].DSN(proxies[1])); !strings.Contains(log, "no standby is synchronous") ||
		!strings.Contains(log, "hosts=2") {
		t.Errorf("two hosts: %q", log)
	}
	set(t, connect(t, dsn), "synchronous_standby_names", "somebody")
	if log := logged(proxies[0].DSN(proxies[1])); log != "" {
		t.Errorf("with a synchronous standby: %s", log)
	}
}

// The server ends a batch with a statement that takes too long: nothing was written, and
// the error says so.
func TestCommit_StatementTimeoutWritesNothing(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{CommitTimeout: 3 * time.Second})
	defer driver.Close()
	admin := connect(t, dsn)
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o, err := driver.Commit(t.Context(), create("first")); err != nil || o[0].Err != nil {
		t.Fatal(o, err)
	}
	// This blocks the statement that follows the lock.
	if _, err := tx.Exec(t.Context(), `LOCK TABLE undo_log IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Commit(t.Context(), create("a")); !errors.Is(err, sqlstore.ErrUnavailable) ||
		errors.Is(err, sqlstore.ErrUnknown) {
		t.Errorf("commit: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o, err := driver.Commit(t.Context(), create("a")); err != nil || o[0].Revision != 2 {
		t.Error(o, err)
	}
}

// The driver soon stops waiting for a batch whose answer the network has lost: it asks the
// server on another connection, and the session of the batch has nothing to do. The outcome
// is unknown, and the driver commits the next batch.
func TestCommit_EndsWhereItsSessionIsDone(t *testing.T) {
	t.Parallel()
	driver, proxies := openThrough(t, 1, postgres.Options{CommitTimeout: 10 * time.Minute, ReadTimeout: 2 * time.Second})
	createAvailable(t, driver, "a")
	proxies[0].Set(pgtest.Failpoint{Statement: "COMMIT", Point: pgtest.Answered, Do: func() pgtest.Action {
		return pgtest.Swallow
	}})
	outcomeIsUnknown(t, driver, "b")
	untilAvailable(t, func(ctx context.Context) error { // the write whose answer was lost
		_, _, err := driver.Get(ctx, create("b")[0].Key)
		return err
	})
	createAvailable(t, driver, "c")
}

// A batch that loses a race against another transaction is sent again: the server has rolled it
// back, and the client need not know.
func TestCommit_RepeatsALostRace(t *testing.T) {
	t.Parallel()
	for _, raise := range []string{
		`ERRCODE = '40001'`, `ERRCODE = '40P01'`, `ERRCODE = '23505', TABLE = 'undo_log'`,
		`ERRCODE = '23505', TABLE = 'resources'`, `ERRCODE = '23505', TABLE = 'current_objects'`,
	} {
		driver, dsn := open(t, postgres.Options{})
		defer driver.Close()
		conn := connect(t, dsn)
		for _, statement := range []string{
			`CREATE SEQUENCE race`, // what was taken of a sequence is not rolled back
			`CREATE FUNCTION race() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('race') < 3 THEN RAISE EXCEPTION 'lost' USING ` + raise + `; END IF;
				RETURN NEW; END $$`,
			`CREATE TRIGGER race BEFORE INSERT ON undo_log FOR EACH ROW EXECUTE FUNCTION race()`,
		} {
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if o, err := driver.Commit(t.Context(), create("a")); err != nil || o[0].Revision != 1 {
			t.Errorf("%s: %v, %v", raise, o, err)
		}
	}
}

// Transactions that need READ COMMITTED ask for it, whatever the default of the database is: a
// snapshot of before the writers' lock would not show what the previous holder has committed.
func TestDriver_AsksForItsIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		dsn := pgtest.DSN(t)
		if _, err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		conn := connect(t, dsn)
		if _, err := conn.Exec(t.Context(), `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''`+isolation+`''', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
		first := openMore(t, dsn, postgres.Options{})
		createDense(t, []*postgres.Driver{first, openMore(t, dsn, postgres.Options{}), openMore(t, dsn, postgres.Options{})})

		// A compaction that waits for the lock, while its holder changes the row.
		if _, err := conn.Exec(t.Context(), `BEGIN; UPDATE store SET compacted = compacted`); err != nil {
			t.Fatal(err)
		}
		compacted := make(chan error, 1)
		go func() {
			_, _, err := first.DeleteHistory(t.Context(), sqlstore.Deletion{Of: create("a")[0].Key.Of(), UpTo: 2, Limit: 10})
			compacted <- err
		}()
		admin := connect(t, dsn)
		storetest.EventuallyDone(t, "a compaction that waits", func(ctx context.Context) (waits bool, err error) {
			err = admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
			return waits, err
		})
		if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
			t.Fatal(err)
		}
		if err := <-compacted; err != nil {
			t.Errorf("%s: compaction: %v", isolation, err)
		}
	}
}

// If the connection breaks after a batch was sent, the outcome of the batch is unknown,
// also behind a pooler, where no statements are prepared.
func TestCommit_OnABrokenConnectionIsUnknown(t *testing.T) {
	t.Parallel()
	for mode, parameter := range map[string]string{"session": "", "pooled": "&default_query_exec_mode=exec"} {
		for name, point := range map[string]pgtest.Point{"before COMMIT": pgtest.Sent, "after COMMIT": pgtest.Answered} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				dsn := pgtest.DSN(t)
				if _, err := migrations.Up(t.Context(), dsn); err != nil {
					t.Fatal(err)
				}
				proxy := pgtest.NewProxy(t, dsn)
				driver := openMore(t, proxy.DSN()+parameter, postgres.Options{})
				mustCreate(t, driver, "a")
				proxy.Set(pgtest.Failpoint{
					Statement: "COMMIT", After: "INSERT INTO undo_log", Point: point,
					Do: func() pgtest.Action { return pgtest.Drop },
				})
				if _, err := driver.Commit(t.Context(), create("b")); !errors.Is(err, sqlstore.ErrUnknown) {
					t.Errorf("commit: %v", err)
				}
				_, _, err := driver.Get(t.Context(), create("b")[0].Key)
				if isThere := err == nil; isThere != (point == pgtest.Answered) {
					t.Errorf("the object: %v", err)
				}
			})
		}
	}
}
