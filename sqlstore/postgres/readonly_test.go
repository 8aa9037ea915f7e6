package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// openReadOnly opens a ReadOnly once the standby has the database.
func openReadOnly(t *testing.T, primary, standby string, options postgres.Options) *postgres.ReadOnly {
	t.Helper()
	var r *postgres.ReadOnly
	storetest.EventuallyDone(t, "the standby has the database", func(ctx context.Context) (_ bool, err error) {
		r, err = postgres.OpenReadOnly(ctx, primary, standby, options)
		return err == nil, err
	})
	return r
}

// awaitReplay waits until a standby has replayed all that the primary has.
func awaitReplay(t *testing.T, primary, standby *pgtest.Cluster) {
	t.Helper()
	var written string
	if err := connect(t, primary.DSN("postgres")).QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&written); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, standby.DSN("postgres"))
	storetest.EventuallyDone(t, "replay", func(ctx context.Context) (isDone bool, err error) {
		err = conn.QueryRow(ctx, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, written).Scan(&isDone)
		return isDone, err
	})
}

// twoProcesses is a process that writes, and reads by another one that only reads. A compaction changes no
// revision: that the standby replays it later would change no answer but its own.
type twoProcesses struct {
	*postgres.ReadOnly
	writer      *postgres.Driver
	awaitReplay func()
}

func (p twoProcesses) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	return p.writer.Commit(ctx, batch)
}

// The suite reads what it has written by another process without a State in between.
func (p twoProcesses) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	_, err := p.State(ctx)
	changes, readErr := p.ReadOnly.Changes(ctx, q)
	return changes, errors.Join(err, readErr)
}

func (p twoProcesses) Histories(ctx context.Context) ([]sqlstore.History, error) {
	_, err := p.State(ctx)
	histories, readErr := p.ReadOnly.Histories(ctx)
	return histories, errors.Join(err, readErr)
}

func (p twoProcesses) Compacted(ctx context.Context, of sqlstore.Resource) (int64, error) {
	_, err := p.State(ctx)
	compacted, readErr := p.ReadOnly.Compacted(ctx, of)
	return compacted, errors.Join(err, readErr)
}

func (p twoProcesses) Usage(ctx context.Context) (sqlstore.Usage, error) {
	_, err := p.State(ctx)
	usage, readErr := p.ReadOnly.Usage(ctx)
	return usage, errors.Join(err, readErr)
}

func (p twoProcesses) CountChanges(ctx context.Context, of sqlstore.Resource, upTo, limit int64) (count, oldest int64, err error) {
	return p.writer.CountChanges(ctx, of, upTo, limit)
}

func (p twoProcesses) DeleteHistory(ctx context.Context, d sqlstore.Deletion) (deleted int, waited time.Duration, err error) {
	defer p.awaitReplay()
	return p.writer.DeleteHistory(ctx, d)
}

func (p twoProcesses) SetRetainedFor(ctx context.Context, ages map[sqlstore.Resource]time.Duration) error {
	defer p.awaitReplay()
	return p.writer.SetRetainedFor(ctx, ages)
}

func (p twoProcesses) Expired(ctx context.Context, now time.Time, limit int) ([]sqlstore.Record, error) {
	return p.writer.Expired(ctx, now, limit)
}

func (p twoProcesses) WithLock(ctx context.Context, name string, f func(context.Context) error) (bool, error) {
	return p.writer.WithLock(ctx, name, f)
}

func (p twoProcesses) Notify(ctx context.Context, revision int64) error {
	return p.writer.Notify(ctx, revision)
}

func (p twoProcesses) Close() error { return errors.Join(p.ReadOnly.Close(), p.writer.Close()) }

// The suite's reads after writes wait for the replay, which is late on purpose.
func TestReadOnly_PassesTheSuite(t *testing.T) {
	t.Parallel()
	primary, standby, _ := startPair(t)
	set(t, connect(t, standby.DSN("postgres")), "recovery_min_apply_delay", "5ms")
	var databases sync.Mutex
	number := 0
	storetest.Run(t, func(t *testing.T) sqlstore.Driver {
		databases.Lock()
		number++
		name := fmt.Sprintf("suite%d", number)
		databases.Unlock()
		if err := primary.Exec(t.Context(), `CREATE DATABASE `+name); err != nil {
			t.Fatal(err)
		}
		if _, err := migrations.Up(t.Context(), primary.DSN(name)); err != nil {
			t.Fatal(err)
		}
		writer, err := postgres.Open(t.Context(), primary.DSN(name), postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		awaitReplay(t, primary, standby)
		return twoProcesses{
			openReadOnly(t, primary.DSN(name), standby.DSN(name), postgres.Options{}), writer,
			func() { awaitReplay(t, primary, standby) },
		}
	})
}

// pair is a writing driver, and a ReadOnly of the same database that is maintained.
type pair struct {
	primary, standby *pgtest.Cluster
	writer           *postgres.Driver
	reader           *postgres.ReadOnly
	log              *syncBuffer
	metrics          *prometheus.Registry
}

// startReadOnly starts a pair. The session of its ReadOnly on the primary is named "reader".
func startReadOnly(t *testing.T) pair {
	t.Helper()
	primary, standby, dsn := startPair(t)
	p := pair{primary: primary, standby: standby, log: &syncBuffer{}, metrics: prometheus.NewRegistry()}
	p.writer = openMore(t, dsn, postgres.Options{})
	logger := slog.New(slog.NewTextHandler(p.log, nil))
	p.reader = openReadOnly(t, dsn+"&application_name=reader", standby.DSN("postgres"), postgres.Options{Logger: logger, Registerer: p.metrics})
	t.Cleanup(func() { p.reader.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.reader.Maintain(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	return p
}

// metric returns a metric of the ReadOnly.
func (p pair) metric(t *testing.T, name string) *dto.Metric {
	t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0]
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

// awaitLog waits until the log of the ReadOnly has a text so many times.
func (p pair) awaitLog(t *testing.T, text string, times int) {
	t.Helper()
	storetest.Eventually(t, text, func() bool { return strings.Count(p.log.String(), text) == times })
}

const (
	away  = "the standby can't be read"
	again = "the standby is read again"
)

func TestReadOnly_AsksThePrimaryWhileTheStandbyIsBehind(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	mustCreate(t, p.writer, "a")
	if err := p.standby.Exec(t.Context(), `SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, p.writer, "b")
	began := time.Now()
	if all := names(t, p.reader); !slices.Equal(all, []string{"a", "b"}) {
		t.Errorf("while the replay is paused: %v", all)
	}
	if took := time.Since(began); took < 2*time.Second || took > 8*time.Second {
		t.Errorf("the first read took %v", took)
	}
	for _, name := range []string{"c", "d"} {
		mustCreate(t, p.writer, name)
		if _, _, err := p.reader.Get(t.Context(), create(name)[0].Key); err != nil {
			t.Error(err)
		}
	}
	p.awaitLog(t, away, 1)
	if n := p.metric(t, "byre_read_only_primary_reads_total").GetCounter().GetValue(); n != 3 {
		t.Errorf("%v reads of the primary are counted, want 3", n)
	}
	if waits := p.metric(t, "byre_read_only_replay_wait_seconds").GetHistogram(); waits.GetSampleSum() < 2 {
		t.Errorf("waits for the replay: %v", waits)
	}
	if err := p.standby.Exec(t.Context(), `SELECT pg_wal_replay_resume()`); err != nil {
		t.Fatal(err)
	}
	p.awaitLog(t, again, 1)
	if all := names(t, p.reader); len(all) != 4 {
		t.Errorf("after the replay: %v", all)
	}
}

// The reads go on when the standby stops, when the primary is started again, and when the standby is promoted. They
// fail while the primary is away.
func TestReadOnly_OutlivesItsServers(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	mustCreate(t, p.writer, "a")
	if err := p.standby.Halt(); err != nil {
		t.Log(err)
	}
	if all := names(t, p.reader); len(all) != 1 {
		t.Errorf("without the standby: %v", all)
	}
	p.awaitLog(t, away, 1)
	if err := p.standby.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitLog(t, again, 1)

	if err := p.primary.Halt(); err != nil {
		t.Log(err)
	}
	if _, err := p.reader.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("without the primary: %v", err)
	}
	if err := p.primary.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilAvailable(t, func(ctx context.Context) error {
		_, err := p.reader.State(ctx)
		return err
	})
	untilAvailable(t, func(ctx context.Context) error {
		_, err := p.writer.State(ctx)
		return err
	})

	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, p.writer, "b")
	if all := names(t, p.reader); !slices.Equal(all, []string{"a", "b"}) {
		t.Errorf("after the promotion of the standby: %v", all)
	}
	if _, err := p.reader.Commit(t.Context(), create("c")); !errors.Is(err, sqlstore.ErrReadOnly) {
		t.Errorf("commit: %v", err)
	}
}

// A failover that may have lost commits is for a process that writes to notice. Until it has, the one that only
// reads answers nothing.
func TestReadOnly_WaitsUntilAFailoverIsAdopted(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	standbyDSN := standby.DSN("postgres")
	writer := openMore(t, dsn, postgres.Options{})
	reader := openReadOnly(t, pgtest.NewProxy(t, dsn).DSN(pgtest.NewProxy(t, standbyDSN)), standbyDSN, postgres.Options{})
	defer reader.Close()
	before, err := reader.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	haltStandby(t, standby, mustCreate(t, writer, "a", "b"))
	mustCreate(t, writer, "lost")
	failOver(t, primary, standby)
	notAdopted := ""
	storetest.Eventually(t, "the new primary is refused", func() bool {
		_, err := reader.State(t.Context())
		if err == nil {
			t.Fatal("the reader follows a server that nobody has adopted")
		}
		notAdopted = err.Error()
		return strings.Contains(notAdopted, "start a server that writes")
	})
	mustCreate(t, openMore(t, standbyDSN, postgres.Options{}), "c")
	var state sqlstore.State
	untilAvailable(t, func(ctx context.Context) (err error) {
		state, err = reader.State(ctx)
		return err
	})
	if state.Epoch == before.Epoch || state.Revision <= before.Revision {
		t.Errorf("state %+v after %+v", state, before)
	}
	if all := names(t, reader); !slices.Equal(all, []string{"a", "b", "c"}) {
		t.Errorf("objects: %v", all)
	}
}

func TestOpenReadOnly_RefusesOtherDatabases(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	foreignPrimary, foreign, foreignDSN := startPair(t)
	openMore(t, foreignDSN, postgres.Options{})
	awaitReplay(t, foreignPrimary, foreign)
	refuses := func(what, primary, standby, want string) {
		t.Helper()
		r, err := postgres.OpenReadOnly(t.Context(), primary, standby, postgres.Options{})
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	refuses("a database that was never served", dsn, standby.DSN("postgres"), "start a server that writes")
	mustCreate(t, openMore(t, dsn, postgres.Options{}), "a")
	refuses("the primary", dsn, dsn, "is no hot standby")
	refuses("the standby in place of the primary", standby.DSN("postgres"), standby.DSN("postgres"), "standby")
	refuses("the standby of another server", dsn, foreign.DSN("postgres"), "has another database")
	if err := primary.Exec(t.Context(), `CREATE DATABASE other`); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), primary.DSN("other")); err != nil {
		t.Fatal(err)
	}
	awaitReplay(t, primary, standby)
	refuses("another database", dsn, standby.DSN("other"), "has another database")
	refuses("no server", dsn, "postgres://127.0.0.1:1/postgres", "connection refused")
}

// While replay stops again and again, a reader that only reads sees each write once it is acknowledged, its
// feed has each change once and in order, and the primary has one connection of it, without a lock.
func TestReadOnly_IsLinearizable(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	ctx, cancel := context.WithCancel(t.Context())
	feed := watch.New(p.reader, watch.Options{})
	var running sync.WaitGroup
	running.Go(func() { _ = feed.Run(ctx) })
	defer running.Wait()
	defer cancel()
	pods := sqlstore.Resource{Resource: "pods"}
	first := mustCreate(t, p.writer, "first")
	if _, err := feed.Latest(ctx); err != nil {
		t.Fatal(err)
	}
	sub, err := feed.Subscribe(ctx, watch.Interest{Resource: pods}, first)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	running.Go(func() {
		for ctx.Err() == nil {
			_ = p.standby.Exec(ctx, `SELECT pg_wal_replay_pause()`)
			time.Sleep(30 * time.Millisecond)
			_ = p.standby.Exec(context.WithoutCancel(ctx), `SELECT pg_wal_replay_resume()`)
			time.Sleep(30 * time.Millisecond)
		}
	})
	monitor := connect(t, p.primary.DSN("postgres"))
	const writes = 200
	var last int64
	for i := range writes {
		name := fmt.Sprintf("pod%d", i)
		last = mustCreate(t, p.writer, name)
		var others sync.WaitGroup
		others.Go(func() {
			if record, revision, err := p.reader.Get(ctx, create(name)[0].Key); err != nil || record.Revision != last || revision < last {
				t.Errorf("get after the write of %d: %d at %d, %v", last, record.Revision, revision, err)
			}
		})
		if i%10 == 0 {
			others.Go(func() {
				if all := names(t, p.reader); len(all) != i+2 {
					t.Errorf("a list after %d writes has %d", i+2, len(all))
				}
			})
		}
		if revision, err := feed.Latest(ctx); err != nil || revision < last {
			t.Fatalf("latest after the write of %d: %d, %v", last, revision, err)
		}
		if s, err := feed.Snapshot(ctx, pods); err != nil || s.Len() < i+2 {
			t.Fatalf("snapshot after the write of %d: %d objects, %v", last, s.Len(), err)
		}
		var sessions, locks int
		if err := monitor.QueryRow(ctx, `SELECT count(DISTINCT a.pid), count(l.pid) FROM pg_stat_activity a
LEFT JOIN pg_locks l ON l.pid = a.pid AND l.mode NOT IN ('AccessShareLock') AND l.locktype <> 'virtualxid'
WHERE a.application_name = 'reader'`).Scan(&sessions, &locks); err != nil || sessions != 1 || locks != 0 {
			t.Fatalf("sessions %d, locks %d, %v", sessions, locks, err)
		}
		others.Wait()
	}
	deadline, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for seen := first; seen < last; {
		events, _, err := sub.Next(deadline)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Revision != seen+1 {
				t.Fatalf("event %d after %d", e.Revision, seen)
			}
			seen = e.Revision
		}
	}
	if strings.Contains(p.log.String(), away) {
		t.Errorf("the reads went to the primary:\n%s", p.log)
	}
}

// mustExec executes statements on a server.
func mustExec(t *testing.T, dsn, statements string) {
	t.Helper()
	if err := connect(t, dsn).PgConn().Exec(t.Context(), statements).Close(); err != nil {
		t.Fatal(err)
	}
}

// endLists ends the sessions of a standby that list.
const endLists = `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query LIKE '%current_objects%' AND pid <> pg_backend_pid()`

// startLongReadOnly is startReadOnly, with 100 objects that are larger than what a socket holds.
func startLongReadOnly(t *testing.T) pair {
	t.Helper()
	p := startReadOnly(t)
	var batch []sqlstore.Write
	for i := range 100 {
		w := create(fmt.Sprintf("pod%03d", i))[0]
		w.Value = []byte(`{"data":"` + strings.Repeat("x", 50_000) + `"}`)
		batch = append(batch, w)
	}
	if _, err := p.writer.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return p
}

// conflict has the replay end the list that a standby is reading, of which monitor is a session.
func conflict(t *testing.T, primary string, monitor *pgx.Conn) {
	t.Helper()
	mustExec(t, primary, `BEGIN; LOCK TABLE current_objects IN ACCESS EXCLUSIVE MODE; COMMIT`)
	storetest.EventuallyDone(t, "the replay waits for the list", func(ctx context.Context) (waits bool, err error) {
		err = monitor.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted)`).Scan(&waits)
		return waits, err
	})
}

// If the standby ends a list of which records were yielded, the primary lists those that are left, at the same revision.
func TestReadOnly_CompletesAListThatTheStandbyEnds(t *testing.T) {
	t.Parallel()
	p := startLongReadOnly(t)
	primary, standby := p.primary.DSN("postgres"), p.standby.DSN("postgres")
	monitor := connect(t, standby)
	set(t, monitor, "max_standby_streaming_delay", "0")
	for name, end := range map[string]func(){
		"the session is ended": func() { mustExec(t, standby, endLists) },
		"the replay conflicts": func() { conflict(t, primary, monitor) },
	} {
		for _, q := range []sqlstore.Query{{}, {Limit: 60, Count: true}} {
			q.Resource = "pods"
			storetest.Eventually(t, "the standby is read", func() bool {
				return strings.Count(p.log.String(), away) == strings.Count(p.log.String(), again)
			})
			before, err := p.reader.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			counted := p.metric(t, "byre_read_only_primary_reads_total").GetCounter().GetValue()
			all := names(t, p.writer)
			var got []string
			listed, err := p.reader.List(t.Context(), q, func(r sqlstore.Record) error {
				if len(got) == 0 {
					mustCreate(t, p.writer, fmt.Sprintf("pod000, after %d", before.Revision))
					end()
				}
				got = append(got, r.Name)
				return nil
			})
			want, wanted := sqlstore.ListResult{Revision: before.Revision}, all
			if q.Limit > 0 {
				wanted, want.More, want.Remaining = all[:q.Limit], true, int64(len(all)-q.Limit)
			}
			if err != nil || listed != want || !slices.Equal(got, wanted) {
				t.Errorf("%s, limit %d: %+v, %v, want %+v; objects %v", name, q.Limit, listed, err, want, got)
			}
			if now := p.metric(t, "byre_read_only_primary_reads_total").GetCounter().GetValue(); now != counted+1 {
				t.Errorf("%s: %v reads of the primary are counted", name, now-counted)
			}
		}
	}
}

// A list is not repeated for an error of its caller. One that has begun without a revision, at one that is
// compacted before it is completed, is not available.
func TestReadOnly_DoesNotCompleteWhatEndsOtherwise(t *testing.T) {
	t.Parallel()
	p := startLongReadOnly(t)
	q := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}
	n, refused := 0, fmt.Errorf("%w: for the caller", sqlstore.ErrUnavailable)
	if _, err := p.reader.List(t.Context(), q, func(sqlstore.Record) error {
		n++
		return refused
	}); !errors.Is(err, refused) || n != 1 {
		t.Errorf("%d records after an error of the caller, %v", n, err)
	}
	n = 0
	if _, err := p.reader.List(t.Context(), q, func(sqlstore.Record) error {
		if n++; n == 1 {
			if _, _, err := p.writer.DeleteHistory(t.Context(), sqlstore.Deletion{Of: q.Of(), UpTo: mustCreate(t, p.writer, "later"), Limit: 1000}); err != nil {
				t.Fatal(err)
			}
			mustExec(t, p.standby.DSN("postgres"), endLists)
		}
		return nil
	}); !errors.Is(err, sqlstore.ErrUnavailable) || errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("after %d records, of a revision that is compacted: %v", n, err)
	}
}

// The feed learns of a change by the driver's looks at the standby, without a poll.
func TestReadOnly_TellsTheFeedOfChanges(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	feed := watch.New(p.reader, watch.Options{Interval: time.Hour})
	var running sync.WaitGroup
	running.Go(func() { _ = feed.Run(ctx) })
	defer running.Wait()
	defer cancel()
	revision, err := feed.Latest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := feed.Subscribe(ctx, watch.Interest{Resource: sqlstore.Resource{Resource: "pods"}}, revision)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	mustCreate(t, p.writer, "a")
	if events, _, err := sub.Next(ctx); err != nil || len(events) != 1 {
		t.Errorf("events %v, %v", events, err)
	}
}

// While a list has the only connection to the primary, which shows later changes, the standby is not taken for one
// that is away.
func TestReadOnly_KeepsTheStandbyWhileThePrimaryIsBusy(t *testing.T) {
	t.Parallel()
	p := startLongReadOnly(t)
	monitor := connect(t, p.standby.DSN("postgres"))
	set(t, monitor, "max_standby_streaming_delay", "0")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.reader.Listen(ctx, func(int64) {}) })
	defer running.Wait()
	defer cancel()
	q, n, isBusy := sqlstore.Query{}, 0, false
	q.Resource = "pods"
	_, err := p.reader.List(ctx, q, func(sqlstore.Record) error {
		if n++; n == 1 {
			conflict(t, p.primary.DSN("postgres"), monitor)
		}
		if isBusy || p.metric(t, "byre_read_only_primary_reads_total").GetCounter().GetValue() == 0 {
			return nil
		}
		isBusy = true
		for i := range 40 {
			mustCreate(t, p.writer, fmt.Sprint("later", i))
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	})
	if err != nil || n != 100 || !isBusy {
		t.Errorf("listed %d, the primary was read: %t, %v", n, isBusy, err)
	}
	if strings.Contains(p.log.String(), away) {
		t.Errorf("the log says %s", p.log)
	}
}

// While a COMMIT waits for its synchronous standby, the other standbys show what it has written, and the primary does
// not. A process that only reads goes on, and shows it when the primary does.
func TestReadOnly_HidesWhatThePrimaryHides(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	admin, standby := connect(t, p.primary.DSN("postgres")), connect(t, p.standby.DSN("postgres"))
	last := mustCreate(t, p.writer, "a")
	requireStandby(t, p.primary.DSN("postgres"), admin)
	if _, err := p.writer.State(t.Context()); err != nil { // it records that commits wait
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	feed := watch.New(p.reader, watch.Options{})
	var running sync.WaitGroup
	running.Go(func() { _ = feed.Run(ctx) })
	defer running.Wait()
	defer cancel()
	if revision, err := feed.Latest(ctx); err != nil || revision != last {
		t.Fatalf("latest: %d, %v", revision, err)
	}
	running.Go(func() {
		if _, err := p.writer.Commit(ctx, create("b")); err != nil && !errors.Is(err, sqlstore.ErrUnknown) {
			t.Errorf("commit: %v", err)
		}
	})
	storetest.EventuallyDone(t, "the standby shows the change", func(ctx context.Context) (isThere bool, err error) {
		err = standby.QueryRow(ctx, `SELECT revision > $1 FROM counters`, last).Scan(&isThere)
		return isThere, err
	})
	for range 50 {
		if state, err := p.reader.State(ctx); err != nil || state.Revision != last {
			t.Errorf("state: %d, %v", state.Revision, err)
		}
		if _, revision, err := p.reader.Get(ctx, create("b")[0].Key); !errors.Is(err, sqlstore.ErrNotFound) || revision != last {
			t.Errorf("get: at %d, %v", revision, err)
		}
		if changes, err := p.reader.Changes(ctx, sqlstore.ChangesQuery{After: last, Limit: 10}); err != nil || len(changes) > 0 {
			t.Errorf("changes: %v, %v", changes, err)
		}
		if revision := feed.Revision(); revision != last {
			t.Errorf("the feed is at %d", revision)
		}
		if t.Failed() {
			break
		}
	}
	set(t, admin, "synchronous_standby_names", "")
	untilAvailable(t, func(ctx context.Context) error {
		_, _, err := p.reader.Get(ctx, create("b")[0].Key)
		if errors.Is(err, sqlstore.ErrNotFound) {
			err = sqlstore.ErrUnavailable
		}
		return err
	})
	if err := feed.WaitFor(ctx, last+1); err != nil {
		t.Error(err)
	}
}

// readings are the reads of a ReadOnly, some of which don't ask the primary first.
func readings(r *postgres.ReadOnly, at int64) map[string]func(context.Context) error {
	list := func(ctx context.Context, at int64) error {
		_, err := r.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, At: at}, func(sqlstore.Record) error { return nil })
		return err
	}
	return map[string]func(context.Context) error{
		"state":   func(ctx context.Context) error { _, err := r.State(ctx); return err },
		"get":     func(ctx context.Context) error { _, _, err := r.Get(ctx, create("a")[0].Key); return err },
		"list":    func(ctx context.Context) error { return list(ctx, 0) },
		"list at": func(ctx context.Context) error { return list(ctx, at) },
		"changes": func(ctx context.Context) error {
			_, err := r.Changes(ctx, sqlstore.ChangesQuery{After: at - 1, Limit: 10})
			return err
		},
		"histories": func(ctx context.Context) error { _, err := r.Histories(ctx); return err },
	}
}

// expectRefused expects each read to fail with an error that tells the operator what to do, and that is logged once.
func (p pair) expectRefused(t *testing.T, when string, at int64, want string) {
	t.Helper()
	logged := strings.Count(p.log.String(), want)
	awaitReplay(t, p.primary, p.standby)
	for name, read := range readings(p.reader, at) {
		if err := read(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s of %s: %v, want %q", name, when, err, want)
		}
	}
	if n := strings.Count(p.log.String(), want) - logged; n != 1 {
		t.Errorf("%s is logged %d times:\n%s", when, n, p.log)
	}
}

// A process that only reads takes no lock: "byre migrate down" and Load don't notice it. It notices them.
func TestReadOnly_NoticesMigrateDownAndRestore(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	dsn := p.primary.DSN("postgres")
	last := mustCreate(t, p.writer, "a", "b")
	before, err := p.reader.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var rows storetest.Rows
	if err := postgres.ReadSnapshot(t.Context(), dsn, func(s sqlstore.Snapshot) (err error) {
		rows, err = storetest.Collect(s)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	deleteAll := func() {
		t.Helper()
		if err := p.writer.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := migrations.Down(t.Context(), dsn, true); err != nil {
			t.Fatal(err)
		}
	}
	deleteAll()
	p.expectRefused(t, "a database without tables", last, "byre migrate status")
	if err := postgres.Load(t.Context(), dsn, backup.Restored(rows.Snapshot(), 1_000_000, "restored", time.Now())); err != nil {
		t.Fatal(err)
	}
	p.expectRefused(t, "a database that is restored and not served", last, "start a server that writes")
	p.writer = openMore(t, dsn, postgres.Options{})
	state, err := p.reader.State(t.Context())
	if err != nil || state.Epoch != "restored" || state.Compacted <= before.Revision {
		t.Errorf("state after a restore: %+v, %v; before %+v", state, err, before)
	}
	for _, name := range []string{"list at", "changes"} {
		if err := readings(p.reader, last)[name](t.Context()); !errors.Is(err, sqlstore.ErrCompacted) {
			t.Errorf("%s of the epoch before: %v", name, err)
		}
	}
	mustCreate(t, p.writer, "c")
	if all := names(t, p.reader); !slices.Equal(all, []string{"a", "b", "c"}) {
		t.Errorf("objects after a restore: %v", all)
	}
	storetest.Eventually(t, "the standby is read again", func() bool {
		return strings.Count(p.log.String(), away) == strings.Count(p.log.String(), again)
	})
	deleteAll()
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	p.writer = openMore(t, dsn, postgres.Options{})
	mustCreate(t, p.writer, "d")
	p.expectRefused(t, "a new database with lower revisions", state.Compacted, "start this server again")
	another := openReadOnly(t, dsn, p.standby.DSN("postgres"), postgres.Options{})
	defer another.Close()
	if all := names(t, another); !slices.Equal(all, []string{"d"}) {
		t.Errorf("objects after another start: %v", all)
	}
}

// Reads that the primary holds up are given up, and none of their sessions is left there.
func TestReadOnly_LeavesNoSessionsAtThePrimary(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	openMore(t, dsn, postgres.Options{})
	reader := openReadOnly(t, dsn+"&application_name=reader", standby.DSN("postgres"), postgres.Options{ReadTimeout: time.Second})
	defer reader.Close()
	locking := connect(t, primary.DSN("postgres"))
	if _, err := locking.Exec(t.Context(), `BEGIN; LOCK TABLE undo_log, store IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if state, err := reader.State(t.Context()); err == nil {
			t.Fatalf("state %v of a primary that is locked", state)
		}
	}
	storetest.EventuallyDone(t, "the sessions end", func(ctx context.Context) (bool, error) {
		var waiting int
		err := locking.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reader' AND wait_event_type = 'Lock'`).Scan(&waiting)
		return waiting <= 1, err
	})
}

// A migration to a schema that this program must know is noticed, also if it changes nothing else.
func TestReadOnly_NoticesANewerSchema(t *testing.T) {
	t.Parallel()
	p := startReadOnly(t)
	last := mustCreate(t, p.writer, "a")
	mustExec(t, p.primary.DSN("postgres"), `BEGIN; UPDATE byre_schema_version SET version = 999; UPDATE store SET least_version = 999; COMMIT`)
	p.expectRefused(t, "a newer schema", last, "made by a newer version of byre")
	mustExec(t, p.primary.DSN("postgres"), `BEGIN; UPDATE byre_schema_version SET version = 999; UPDATE store SET least_version = 1; COMMIT`)
	if all := names(t, p.reader); !slices.Equal(all, []string{"a"}) {
		t.Errorf("objects of a schema that older programs may use: %v", all)
	}
}
