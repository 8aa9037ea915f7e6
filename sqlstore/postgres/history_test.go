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

	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/watch"
)

// syncBuffer is a log that may be written to while it is read.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func mustCreate(t *testing.T, driver sqlstore.Driver, names ...string) (last int64) {
	t.Helper()
	for _, name := range names {
		o, err := driver.Commit(t.Context(), create(name))
		if err != nil || o[0].Err != nil {
			t.Fatalf("create %s: %v, %v", name, o, err)
		}
		last = o[0].Revision
	}
	return last
}

func names(t *testing.T, driver sqlstore.Driver) (all []string) {
	t.Helper()
	if _, err := driver.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(r sqlstore.Record) error {
		all = append(all, r.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// lose takes the last commits from the database, as a failover to a standby that
// was behind does.
func lose(t *testing.T, dsn string, after int64) {
	t.Helper()
	for _, statement := range []string{`DELETE FROM objects WHERE revision > $1`, `DELETE FROM changes WHERE revision > $1`} {
		if _, err := connect(t, dsn).Exec(t.Context(), statement, after); err != nil {
			t.Fatal(err)
		}
	}
}

// Lost commits are noticed by whatever is asked first, whether or not their
// revisions were given again meanwhile, and answered by a new epoch that lies
// beyond them.
func TestLostCommits(t *testing.T) {
	t.Parallel()
	for name, again := range map[string][]string{
		"nothing since":      nil,
		"some given again":   {"x"},
		"all given again":    {"x", "y"},
		"and more than that": {"x", "y", "z"},
	} {
		for first, ask := range map[string]func(*postgres.Driver) error{
			"State": func(d *postgres.Driver) error { _, err := d.State(t.Context()); return err },
			"Get":   func(d *postgres.Driver) error { _, _, err := d.Get(t.Context(), create("a")[0].Key); return err },
			"List": func(d *postgres.Driver) error {
				_, err := d.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(sqlstore.Record) error {
					return errors.New("a list of another history")
				})
				return err
			},
			"Changes": func(d *postgres.Driver) error { _, err := d.Changes(t.Context(), 2, 10, 0); return err },
			"Commit":  func(d *postgres.Driver) error { _, err := d.Commit(t.Context(), create("new")); return err },
		} {
			t.Run(name+"/"+first, func(t *testing.T) {
				t.Parallel()
				var log syncBuffer
				driver, dsn := open(t, postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				defer driver.Close()
				if last := mustCreate(t, driver, "a", "b", "lost", "lost too"); last != 4 {
					t.Fatal(last)
				}
				before, err := driver.State(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				lose(t, dsn, 2)
				mustCreate(t, openMore(t, dsn, postgres.Options{}), again...)

				if err := ask(driver); !errors.Is(err, sqlstore.ErrUnavailable) {
					t.Fatalf("asked first: %v", err)
				}
				state, err := driver.State(t.Context())
				if err != nil || state.Epoch == before.Epoch || state.Revision <= 5 || state.Compacted != state.Revision {
					t.Errorf("state: %+v, %v; before %+v", state, err, before)
				}
				if want := slices.Concat([]string{"a", "b"}, again); !slices.Equal(names(t, driver), want) {
					t.Errorf("there are %q, want %q", names(t, driver), want)
				}
				for _, after := range []int64{0, 2, 4} {
					if _, err := driver.Changes(t.Context(), after, 10, 0); !errors.Is(err, sqlstore.ErrCompacted) {
						t.Errorf("changes after %d: %v", after, err)
					}
				}
				if next := mustCreate(t, driver, "next"); next != state.Revision+1 {
					t.Errorf("next revision is %d after %d", next, state.Revision)
				}
				if n := strings.Count(log.String(), "lost commits"); n != 1 {
					t.Errorf("%d lines of lost commits:\n%s", n, &log)
				}
				// What is compacted, and still there, goes bit by bit.
				for done := false; !done; {
					if done, err = driver.Compact(t.Context(), state.Revision+1, 1); err != nil {
						t.Fatal(err)
					}
				}
				var left int
				if err := connect(t, dsn).QueryRow(t.Context(), `SELECT count(*) FROM changes`).Scan(&left); err != nil || left != 0 {
					t.Errorf("%d changes are left, %v", left, err)
				}
				if again, err := driver.State(t.Context()); err != nil || again.Revision != state.Revision+1 || again.Epoch != state.Epoch {
					t.Errorf("state after a compaction: %+v, %v", again, err)
				}
			})
		}
	}
}

// Processes that have lost different commits end in one epoch beyond all of them.
func TestLostCommitsOfSeveral(t *testing.T) {
	t.Parallel()
	ahead, dsn := open(t, postgres.Options{})
	defer ahead.Close()
	behind := openMore(t, dsn, postgres.Options{})
	mustCreate(t, ahead, "a", "b", "c")
	if _, err := behind.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, ahead, "d")
	lose(t, dsn, 1)
	var state [2]sqlstore.State
	for range 3 {
		for i, d := range []*postgres.Driver{behind, ahead} {
			var err error
			if state[i], err = d.State(t.Context()); err != nil && !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Fatal(err)
			}
		}
	}
	if state[0].Epoch == "" || state[0].Epoch != state[1].Epoch || state[0].Revision != state[1].Revision {
		t.Errorf("states: %+v", state)
	}
	if _, err := ahead.Changes(t.Context(), 4, 1, 0); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("changes after what one has lost: %v", err)
	}
	mustCreate(t, behind, "e")
	mustCreate(t, ahead, "f")
	if all := names(t, ahead); !slices.Equal(all, []string{"a", "e", "f"}) {
		t.Errorf("there are %q", all)
	}
}

// A primary dies with commits that its asynchronous standby does not have, and the
// standby takes over. Another process gives their revisions to other changes. Then
// nothing goes on as if they had happened: subscriptions end, state is read again.
func TestFailoverThatLosesCommits(t *testing.T) {
	t.Parallel()
	primary, dsn := startCluster(t)
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, standby)
	old, next := pgtest.NewProxy(t, dsn), pgtest.NewProxy(t, standby.DSN("postgres"))
	if _, err := postgres.Open(t.Context(), next.DSN(), postgres.Options{}); !errors.Is(err, sqlstore.ErrUnavailable) || !strings.Contains(err.Error(), "standby") {
		t.Fatalf("a standby alone: %v", err)
	}
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	driver := openMore(t, next.DSN(old), postgres.Options{Logger: logger}) // finds the primary
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
	last := mustCreate(t, driver, "a", "b")
	await(t, "replication", func(ctx context.Context) (bool, error) {
		var revision int64
		err := connect(t, standby.DSN("postgres")).QueryRow(ctx, `SELECT revision FROM counters`).Scan(&revision)
		return revision == last, err
	})
	if err := standby.Halt(); err != nil {
		t.Logf("halt: %v", err)
	}
	lost := mustCreate(t, driver, "lost", "lost too")
	pods := watch.Resource{Name: "pods"}
	snapshot := func() watch.Snapshot {
		var s watch.Snapshot
		recoverReads(t, func(ctx context.Context) (err error) {
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

	if err := primary.Halt(); err != nil {
		t.Logf("halt: %v", err)
	}
	next.Silence() // or the feed, which polls, would begin an epoch before the other process writes
	if err := standby.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	other := openMore(t, standby.DSN("postgres"), postgres.Options{})
	if again := mustCreate(t, other, "x", "y", "z"); again != lost+1 {
		t.Fatalf("the new primary gave revision %d, want %d", again, lost+1)
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
	if !strings.Contains(log.String(), "lost commits") {
		t.Errorf("the log says nothing:\n%s", &log)
	}
	mustCreate(t, driver, "after")
	if s := snapshot(); s.Get("n", "after") == nil {
		t.Error("what was written afterwards is not there")
	}
}

// The statements of the release before, which may still run beside this one, see
// every revision of this one, and give the next.
func TestReleaseBefore(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	old := connect(t, dsn)
	for i := range 3 {
		if last := mustCreate(t, driver, fmt.Sprint("new", i)); last != int64(2*i+1) {
			t.Fatalf("new: revision %d", last)
		}
		tx, err := old.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var revision int64
		if _, err := tx.Exec(t.Context(), `SELECT revision FROM counters WHERE id = 1 FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), releasedBatch, fmt.Sprint("old", i)).Scan(&revision); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if state, err := driver.State(t.Context()); err != nil || revision != int64(2*i+2) || state.Revision != revision {
			t.Fatalf("old: revision %d, state %+v, %v", revision, state, err)
		}
	}
	// Its compaction, as in the release.
	if _, err := old.Exec(t.Context(), `DELETE FROM changes WHERE revision <= 6`); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(t.Context(), `UPDATE counters SET compacted = greatest(compacted, 6) WHERE id = 1`); err != nil {
		t.Fatal(err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Revision != 6 || state.Compacted != 6 {
		t.Errorf("state after its compaction: %+v, %v", state, err)
	}
	if last := mustCreate(t, driver, "last"); last != 7 {
		t.Errorf("revision %d after its compaction", last)
	}
	// The lock is one and the same.
	tx, err := old.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT revision FROM counters WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var free int
	if err := connect(t, dsn).QueryRow(t.Context(),
		`SELECT count(*) FROM (SELECT FROM store FOR UPDATE SKIP LOCKED) free`).Scan(&free); err != nil || free != 0 {
		t.Errorf("while the release before holds the lock: %d free, %v", free, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// releasedBatch is the batch of the first release, for one create.
const releasedBatch = `
WITH asked AS MATERIALIZED (
    SELECT $1::text AS name, k.revision + 1 AS revision, statement_timestamp() AS time FROM counters k WHERE k.id = 1
), logged AS (
    INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, namespace, name, uid, replaces, created_revision)
    SELECT revision, time, 'create', '', '', '', '', 'pods', 'n', name, '', 0, revision FROM asked
), created AS (
    INSERT INTO objects (revision, "group", resource, namespace, name, uid, created_revision, time, verb, who, form, value)
    SELECT revision, '', 'pods', 'n', name, '', revision, time, '', '', '', '{}' FROM asked
), counted AS (
    UPDATE counters k SET revision = k.revision + e.n
    FROM (SELECT count(*) AS n FROM asked) e
    WHERE k.id = 1 AND e.n > 0
)
SELECT revision FROM asked`

// A server that holds all commits after all begins no epoch: what was read from
// another one (a primary of before, behind the same name) is refused, and nothing
// that this process has seen is forgotten for it.
func TestLostCommitsThatAreThere(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	driver, dsn := open(t, postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer driver.Close()
	mustCreate(t, driver, "a", "b", "c")
	before, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	holder, err := connect(t, dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM store FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	admin := connect(t, dsn)
	exec := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE saved AS SELECT * FROM changes WHERE revision = 3`)
	exec(`DELETE FROM changes WHERE revision = 3`)
	asked := make(chan error, 1)
	go func() {
		_, err := driver.State(t.Context())
		asked <- err
	}()
	for waiting := 0; waiting == 0; time.Sleep(10 * time.Millisecond) {
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO changes SELECT * FROM saved`)
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("asked of less: %v", err)
	}
	if strings.Contains(log.String(), "lost commits") {
		t.Errorf("nothing is lost:\n%s", &log)
	}
	lose(t, dsn, 2)
	if _, err := driver.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("lost in fact: %v", err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Epoch == before.Epoch {
		t.Errorf("state: %+v, %v; before %+v", state, err, before)
	}
}

// A process that has seen no more of the last change than its revision does not
// commit to a database that is behind it.
func TestLostCommitsAfterACompaction(t *testing.T) {
	t.Parallel()
	first, dsn := open(t, postgres.Options{})
	defer first.Close()
	mustCreate(t, first, "a", "b", "c")
	if done, err := first.Compact(t.Context(), 3, 10); err != nil || !done {
		t.Fatal(done, err)
	}
	driver := openMore(t, dsn, postgres.Options{})
	before, err := driver.State(t.Context())
	if err != nil || before.Compacted != 3 {
		t.Fatalf("%+v, %v", before, err)
	}
	if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE store SET revision = 2, compacted = 2`); err != nil {
		t.Fatal(err)
	}
	if o, err := driver.Commit(t.Context(), create("d")); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Fatalf("a commit: %+v, %v", o, err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Epoch == before.Epoch || state.Revision <= 3 {
		t.Errorf("state: %+v, %v", state, err)
	}
}
