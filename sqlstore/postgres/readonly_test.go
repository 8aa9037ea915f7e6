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

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"byre/migrations"
	"byre/sqlstore"
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
