package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/storetest"
)

// syncBuffer holds a log that a test can read while the driver writes to it.
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

// loseCommits deletes the commits after a revision from the database. A failover to a
// standby that lags behind has the same effect.
func loseCommits(t *testing.T, dsn string, after int64) {
	t.Helper()
	for _, statement := range []string{`DELETE FROM current_objects WHERE revision > $1`, `DELETE FROM undo_log WHERE revision > $1`} {
		if _, err := connect(t, dsn).Exec(t.Context(), statement, after); err != nil {
			t.Fatal(err)
		}
	}
}

// The first request after commits were lost notices the loss, even if their revisions were
// given to other changes. It begins an epoch beyond the lost revisions.
func TestLostCommits_AreNoticed(t *testing.T) {
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
			"Changes": func(d *postgres.Driver) error {
				_, err := d.Changes(t.Context(), sqlstore.ChangesQuery{After: 2, Limit: 10})
				return err
			},
			"Commit": func(d *postgres.Driver) error { _, err := d.Commit(t.Context(), create("new")); return err },
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
				loseCommits(t, dsn, 2)
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
					if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: after, Limit: 10}); !errors.Is(err, sqlstore.ErrCompacted) {
						t.Errorf("changes after %d: %v", after, err)
					}
				}
				if next := mustCreate(t, driver, "next"); next != state.Revision+1 {
					t.Errorf("next revision is %d after %d", next, state.Revision)
				}
				if n := strings.Count(log.String(), "lost commits"); n != 1 {
					t.Errorf("%d lines of lost commits:\n%s", n, &log)
				}
				// Compaction deletes the remaining rows in several steps.
				storetest.Compact(t, driver, state.Revision+1)
				var left int
				if err := connect(t, dsn).QueryRow(t.Context(), `SELECT count(*) FROM undo_log`).Scan(&left); err != nil || left != 0 {
					t.Errorf("%d changes are left, %v", left, err)
				}
				if again, err := driver.State(t.Context()); err != nil || again.Revision != state.Revision+1 || again.Epoch != state.Epoch {
					t.Errorf("state after a compaction: %+v, %v", again, err)
				}
			})
		}
	}
}

// Processes that have seen different numbers of the lost commits agree on one new epoch,
// beyond all the lost commits.
func TestLostCommits_OfSeveralEndInOneEpoch(t *testing.T) {
	t.Parallel()
	ahead, dsn := open(t, postgres.Options{})
	defer ahead.Close()
	behind := openMore(t, dsn, postgres.Options{})
	mustCreate(t, ahead, "a", "b", "c")
	if _, err := behind.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, ahead, "d")
	loseCommits(t, dsn, 1)
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
	if _, err := ahead.Changes(t.Context(), sqlstore.ChangesQuery{After: 4, Limit: 1}); !errors.Is(err, sqlstore.ErrCompacted) {
		t.Errorf("changes after what one has lost: %v", err)
	}
	mustCreate(t, behind, "e")
	mustCreate(t, ahead, "f")
	if all := names(t, ahead); !slices.Equal(all, []string{"a", "e", "f"}) {
		t.Errorf("there are %q", all)
	}
}

// A read that reaches another server, which lags behind (an earlier primary behind the same
// name), fails. It begins no epoch on the primary, which holds all commits. The process keeps
// what it saw last: when the primary does lose commits later, the process notices.
func TestLostCommits_NoEpochWhenAllAreThere(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	driver, dsn := open(t, postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer driver.Close()
	mustCreate(t, driver, "a", "b", "c")
	before, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin := connect(t, dsn)
	exec := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE saved AS SELECT * FROM undo_log WHERE revision = 3`)
	exec(`DELETE FROM undo_log WHERE revision = 3`)
	asked := whileLocked(t, dsn, admin, func() error { _, err := driver.State(t.Context()); return err },
		`INSERT INTO undo_log SELECT * FROM saved`)
	if asked != nil {
		t.Errorf("a read that first meets a state that lags behind: %v", asked)
	}
	if strings.Contains(log.String(), "lost commits") {
		t.Errorf("the log tells of lost commits, and none were lost:\n%s", &log)
	}
	loseCommits(t, dsn, 2)
	if _, err := driver.State(t.Context()); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("a read after commits were lost: %v", err)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Epoch == before.Epoch {
		t.Errorf("state: %+v, %v; before %+v", state, err, before)
	}
}

// A process that has seen only the revision of the last change, because its row is
// compacted, does not commit to a database that lags behind that revision.
// A change whose value is gone, since somebody has deleted the row that replaced it, fails with
// sqlstore.ErrDamaged: who follows the changes reads everything again.
func TestChanges_WithoutTheirValueAreDamaged(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	w := create("a")
	w[0].Op, w[0].Replaces = sqlstore.Update, mustCreate(t, driver, "a")
	if o, err := driver.Commit(t.Context(), w); err != nil || o[0].Err != nil {
		t.Fatal(o, err)
	}
	mustCreate(t, driver, "b")
	if _, err := connect(t, dsn).Exec(t.Context(), `DELETE FROM undo_log WHERE revision = 2`); err != nil {
		t.Fatal(err)
	}
	changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{Limit: 10})
	if !errors.Is(err, sqlstore.ErrDamaged) || errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("%+v, %v", changes, err)
	}
}

func TestLostCommits_AfterACompaction(t *testing.T) {
	t.Parallel()
	first, dsn := open(t, postgres.Options{})
	defer first.Close()
	mustCreate(t, first, "a", "b", "c")
	storetest.Compact(t, first, 3)
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

// A process can't tell whether a server that was started anew has the changes that the process has
// seen, if the last of them is compacted there. It then goes on as if all resources were compacted as far.
func TestLostCommits_MayBeUnknownAfterACompaction(t *testing.T) {
	t.Parallel()
	first, dsn := open(t, postgres.Options{})
	defer first.Close()
	quiet, last := sqlstore.Resource{Resource: "configmaps"}, mustCreate(t, first, "a", "b")
	write := create("c")
	write[0].Key.Resource = quiet.Resource
	if _, err := first.Commit(t.Context(), write); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, first, "d")
	other := openMore(t, dsn, postgres.Options{})
	if _, _, err := other.DeleteHistory(t.Context(), sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: 4, Limit: 10}); err != nil {
		t.Fatal(err)
	}
	compacted := func() int64 {
		t.Helper()
		revision, err := first.Compacted(t.Context(), quiet)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	if got := compacted(); got != 0 {
		t.Errorf("compacted up to %d on the server that the process knows, want 0", got)
	}
	// Any change of the instance is that of a start.
	if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE store SET epoch = 'another'`); err != nil {
		t.Fatal(err)
	}
	if got := compacted(); got != 4 {
		t.Errorf("compacted up to %d on a server that the process does not know, want 4: %d was given before", got, last)
	}
}

// If the row of the last seen change was compacted before this process saw it, only its revision
// identifies the change that it saw last. A read from a server that lags behind begins no epoch then either,
// if the primary has that revision.
func TestStaleRead_AfterACompactionBeginsNoEpoch(t *testing.T) {
	t.Parallel()
	first, dsn := open(t, postgres.Options{})
	defer first.Close()
	mustCreate(t, first, "a", "b", "c")
	admin := connect(t, dsn)
	exec := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE saved AS SELECT * FROM undo_log`)
	storetest.Compact(t, first, 3)
	driver := openMore(t, dsn, postgres.Options{})
	before, err := driver.State(t.Context())
	if err != nil || before.Compacted != 3 {
		t.Fatalf("%+v, %v", before, err)
	}
	// The server that the next read reaches lags behind; the primary holds revision 3.
	exec(`UPDATE store SET revision = 2, compacted = 2`)
	asked := whileLocked(t, dsn, admin, func() error { _, err := driver.State(t.Context()); return err },
		`INSERT INTO undo_log SELECT * FROM saved WHERE revision = 3`)
	if asked != nil {
		t.Errorf("a read that first meets a server that lags behind: %v", asked)
	}
	if state, err := driver.State(t.Context()); err != nil || state.Epoch != before.Epoch || state.Revision != 3 {
		t.Errorf("state: %+v, %v; before %+v", state, err, before)
	}
}

// whileLocked takes the writers' lock, calls ask, waits until ask waits for the lock,
// executes a statement, releases the lock, and returns the result of ask.
func whileLocked(t *testing.T, dsn string, admin *pgx.Conn, ask func() error, statement string) error {
	t.Helper()
	holder, err := connect(t, dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM store FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() { asked <- ask() }()
	storetest.EventuallyDone(t, "a wait for the lock", func(ctx context.Context) (waits bool, err error) {
		err = admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		return waits, err
	})
	if _, err := admin.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return <-asked
}
