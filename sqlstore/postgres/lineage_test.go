package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// All processes end, the primary fails with commits that its standby does not have, and the
// standby is promoted: no process remembers the lost commits. The first process that starts
// begins an epoch, so that no client continues at a revision that is given twice.
func TestFailover_IsNoticedByTheNextStart(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	driver, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kept := mustCreate(t, driver, "kept")
	haltStandby(t, standby, kept)
	past := storetest.RecordPast(t, driver, sqlstore.Resource{Resource: "pods"})
	lost := mustCreate(t, driver, "a", "b", "c")
	before, err := driver.State(t.Context())
	if err := errors.Join(err, driver.Close()); err != nil {
		t.Fatal(err)
	}
	failOver(t, primary, standby)

	var log syncBuffer
	driver = openMore(t, standby.DSN("postgres"), postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	state, err := driver.State(t.Context())
	if err != nil || state.Epoch == before.Epoch || state.Compacted <= lost || state.Revision != state.Compacted {
		t.Errorf("after the failover %+v, %v; before %+v", state, err, before)
	}
	if !strings.Contains(log.String(), "a new epoch begins") {
		t.Errorf("the log says nothing: %s", &log)
	}
	past(driver, 0, kept)
	for _, of := range []*sqlstore.Resource{nil, {Resource: "pods"}, {Resource: "none"}} {
		if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: lost, Of: of, Limit: 10}); !errors.Is(err,
			sqlstore.ErrCompacted) {
			t.Errorf("changes of %v after a revision that is lost: %v", of, err)
		}
	}
	if again, err := openMore(t, standby.DSN("postgres"), postgres.Options{}).State(t.Context()); err != nil ||
		again.Epoch != state.Epoch || again.Revision != state.Revision {
		t.Errorf("the start after that: %+v, %v; want %+v", again, err, state)
	}
}

// A process has seen less than another one, which dies with the primary. It finds its last change
// on the standby that took over, and still begins an epoch: the other process has acknowledged
// changes whose revisions it would give again.
func TestFailover_SurvivorBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	primary, standby, dsn := startPair(t)
	acknowledged, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	survivor := openMore(t, pgtest.NewProxy(t, dsn).DSN(pgtest.NewProxy(t, standby.DSN("postgres"))), postgres.Options{})
	haltStandby(t, standby, mustCreate(t, acknowledged, "a", "b"))
	before, err := survivor.State(t.Context())
	if err != nil || before.Revision != 2 {
		t.Fatal(before, err)
	}
	lost := mustCreate(t, acknowledged, "lost", "lost too", "and this")
	if err := acknowledged.Close(); err != nil {
		t.Fatal(err)
	}
	failOver(t, primary, standby)
	storetest.EventuallyDone(t, "the survivor writes", func(ctx context.Context) (bool, error) {
		o, err := survivor.Commit(ctx, create("x"))
		if err == nil && o[0].Revision <= lost {
			t.Errorf("revision %d is given again", o[0].Revision)
		}
		return err == nil, err
	})
	state, err := survivor.State(t.Context())
	if err != nil || state.Epoch == before.Epoch || state.Compacted <= lost {
		t.Errorf("state %+v, %v", state, err)
	}
	if _, err := survivor.Changes(t.Context(), sqlstore.ChangesQuery{After: lost, Limit: 10}); !errors.Is(err,
		sqlstore.ErrCompacted) {
		t.Errorf("a client that goes on after %d: %v", lost, err)
	}
}

// A synchronous standby has every acknowledged commit. When it takes over no epoch begins, neither
// then, nor at a later start, nor when the old primary takes over again.
func TestFailover_WithoutLossBeginsNoEpoch(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	site := pgtest.NewSite(t, pgtest.SiteConfig{Standby: true, Synchronous: true, Replicas: 2})
	if _, err := migrations.Up(t.Context(), site.DSN(0)); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	options := postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	running, restarted := openMore(t, site.DSN(0), options), openMore(t, site.DSN(1), options)
	createAvailable(t, running, "a")
	before, err := running.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n, last := range []string{"b", "c"} {
		if err := restarted.Close(); err != nil {
			t.Fatal(err)
		}
		if err := site.Failover(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if n == 0 { // the second time the process that starts is the first on the new primary
			createAvailable(t, running, last)
		}
		restarted = openMore(t, site.DSN(1), options)
		if n == 1 {
			createAvailable(t, restarted, last)
		}
		for _, driver := range []*postgres.Driver{running, restarted} {
			untilAvailable(t, func(ctx context.Context) error {
				state, err := driver.State(ctx)
				if err == nil && (state.Epoch != before.Epoch || state.Revision != before.Revision+int64(n)+1) {
					t.Errorf("failover %d: %+v, before %+v", n+1, state, before)
				}
				return err
			})
		}
	}
	if n := strings.Count(log.String(), "a standby took over"); n != 2 ||
		strings.Contains(log.String(), "a new epoch begins") {
		t.Errorf("the log:\n%s", &log)
	}
}

// A server that is restarted, or whose commits begin to wait for a standby, is the same: no epoch
// begins, and no request fails for it.
func TestAdopt_TheSameServerIsNoLoss(t *testing.T) {
	t.Parallel()
	cluster, dsn := startCluster(t)
	admin := connect(t, dsn)
	driver := openMore(t, dsn, postgres.Options{})
	other := openMore(t, dsn, postgres.Options{})
	mustCreate(t, driver, "a")
	before, err := driver.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when string) {
		t.Helper()
		for _, d := range []*postgres.Driver{driver, other} {
			untilAvailable(t, func(ctx context.Context) error {
				state, err := d.State(ctx)
				if err == nil && (state.Epoch != before.Epoch || state.Revision != before.Revision) {
					t.Errorf("%s: %+v, before %+v", when, state, before)
				}
				return err
			})
		}
	}
	set(t, admin, "synchronous_standby_names", "nobody")
	expect("commits that wait for a standby")
	set(t, admin, "synchronous_standby_names", "")
	expect("commits that wait for no standby")
	if err := cluster.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("after a restart")
	createAvailable(t, other, "b")
}

// Open and every statement notice that the store is another one: one that was restored into the
// same server, one that the origin in the store does not name, or one that an administrator
// declares as restored. A new store, and one that Load has filled, begin no epoch.
func TestAdopt_BeginsAnEpochInAnotherStore(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"a table that was restored": `ALTER TABLE store RENAME TO old; CREATE TABLE store (LIKE old INCLUDING ALL);
			INSERT INTO store SELECT * FROM old`,
		"another server":   `UPDATE store SET lineage = '7000000000000000000' || substr(lineage, strpos(lineage, '/'))`,
		"another timeline": `UPDATE store SET lineage = replace(lineage, '/1/', '/7/')`,
		"another timeline, and commits that had waited": `UPDATE store SET lineage = replace(lineage, '/1/', '/7/') || ' synchronous'`,
		"an administrator": `UPDATE store SET lineage = 'restored'`,
	} {
		for _, isRunning := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", running ", isRunning), func(t *testing.T) {
				t.Parallel()
				driver, dsn := open(t, postgres.Options{})
				last := mustCreate(t, driver, "a", "b")
				before, err := driver.State(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if !isRunning {
					if err := driver.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if err := connect(t, dsn).PgConn().Exec(t.Context(), change).Close(); err != nil {
					t.Fatal(err)
				}
				if !isRunning {
					driver = openMore(t, dsn, postgres.Options{})
				}
				defer driver.Close()
				createAvailable(t, driver, "c")
				state, err := driver.State(t.Context())
				if err != nil || state.Epoch == before.Epoch || state.Compacted <= last || state.Revision != state.Compacted+1 {
					t.Errorf("%+v, %v; before %+v", state, err, before)
				}
				again, err := openMore(t, dsn, postgres.Options{}).State(t.Context())
				if err != nil || again.Epoch != state.Epoch || again.Revision != state.Revision {
					t.Errorf("another start: %+v, %v; want %+v", again, err, state)
				}
			})
		}
	}
}

// The past is left after each epoch, as far as no change was deleted.
func TestAdopt_ThePastIsLeft(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	last := mustCreate(t, driver, "a", "b", "c", "d")
	past := storetest.RecordPast(t, driver, sqlstore.Resource{Resource: "pods"})
	exec := func(statements string) {
		t.Helper()
		if err := connect(t, dsn).PgConn().Exec(t.Context(), statements).Close(); err != nil {
			t.Fatal(err)
		}
	}
	from := int64(0)
	for i := range 3 {
		if i > 0 {
			// Each deletion is of revisions before the epoch.
			from = int64(i)
			storetest.Compact(t, driver, from)
		}
		exec(`UPDATE store SET lineage = 'restored'`)
		createAvailable(t, driver, fmt.Sprint("later-", i))
		past(driver, from, last)
	}
	// A program that does not know that the history has two ends deletes changes.
	exec(`DELETE FROM undo_log WHERE revision <= 3; UPDATE resources SET compacted = greatest(compacted, 3)`)
	past(driver, last+1, last)
}

// A dump that is restored into the same database puts back an older state. Its table is another one.
func TestRestore_OfADumpBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	for _, isRunning := range []bool{true, false} {
		t.Run(fmt.Sprint("running ", isRunning), func(t *testing.T) {
			t.Parallel()
			driver, dsn := open(t, postgres.Options{})
			kept := mustCreate(t, driver, "a", "b")
			past := storetest.RecordPast(t, driver, sqlstore.Resource{Resource: "pods"})
			run := func(program string, arguments ...string) {
				t.Helper()
				path, err := pgtest.Program(program)
				if err != nil {
					t.Fatal(err)
				}
				if out, err := exec.CommandContext(t.Context(), path,
					append(arguments, "--dbname="+dsn)...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", program, err, out)
				}
			}
			dump := filepath.Join(t.TempDir(), "dump")
			run("pg_dump", "--format=custom", "--file="+dump)
			// The survivor has seen no more than what the dump has.
			survivor := openMore(t, dsn, postgres.Options{})
			before, err := survivor.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			lost := mustCreate(t, driver, "lost", "lost too")
			if err := driver.Close(); err != nil {
				t.Fatal(err)
			}
			if !isRunning {
				if err := survivor.Close(); err != nil {
					t.Fatal(err)
				}
			}
			run("pg_restore", "--clean", "--single-transaction", dump)
			if !isRunning {
				survivor = openMore(t, dsn, postgres.Options{})
			}
			createAvailable(t, survivor, "c")
			state, err := survivor.State(t.Context())
			if err != nil || state.Epoch == before.Epoch || state.Compacted <= lost || state.Revision != state.Compacted+1 {
				t.Errorf("%+v, %v; before %+v", state, err, before)
			}
			past(survivor, 0, kept)
		})
	}
}

// ReadIdle refuses a store on which a start would begin an epoch: a server on a copy of it would go
// on in the old one.
func TestReadIdle_RefusesWhatMayHaveLostCommits(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	mustCreate(t, driver, "a")
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	read := func() error { return postgres.ReadIdle(t.Context(), dsn, func(sqlstore.Snapshot) error { return nil }) }
	if err := read(); err != nil {
		t.Errorf("after a stop: %v", err)
	}
	if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE store SET lineage = 'restored'`); err != nil {
		t.Fatal(err)
	}
	if err := read(); err == nil || !strings.Contains(err.Error(), "start byre on it") {
		t.Errorf("a store that was restored: %v", err)
	}
	if err := openMore(t, dsn, postgres.Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	if err := read(); err != nil {
		t.Errorf("after a start: %v", err)
	}
}

// Behind a pooler, which connects to another server unseen, each batch notices it.
func TestPooler_AnotherStoreBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	driver, pooler := openPooled(t, postgres.Options{})
	defer driver.Close()
	last := mustCreate(t, driver, "a", "b")
	other := openMore(t, pooler.DSN(), postgres.Options{})
	config, err := pgx.ParseConfig(pooler.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `UPDATE store SET lineage = 'restored'`); err != nil {
		t.Fatal(err)
	}
	createAvailable(t, driver, "c")
	state, err := other.State(t.Context())
	if err != nil || state.Compacted <= last || state.Revision != state.Compacted+1 {
		t.Errorf("%+v, %v", state, err)
	}
}

// Only a server that refuses to tell its timeline counts as the one that is stored. After any other
// error the origin is not known, and a loss could go unnoticed: followInstance fails and is repeated.
func TestAdopt_RepeatsWhatFailed(t *testing.T) {
	t.Parallel()
	for code, isRefusal := range map[string]bool{"42501": true, "42883": true, "0A000": true, "58030": false,
		"57014": false} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			driver, dsn := open(t, postgres.Options{})
			mustCreate(t, driver, "a")
			before, err := driver.State(t.Context())
			if err := errors.Join(err, driver.Close()); err != nil {
				t.Fatal(err)
			}
			conn := connect(t, dsn)
			execute := func(statement string) {
				t.Helper()
				if err := conn.PgConn().Exec(t.Context(), statement).Close(); err != nil {
					t.Fatal(err)
				}
			}
			execute(`CREATE FUNCTION public.pg_control_system(OUT system_identifier bigint) LANGUAGE plpgsql AS
				$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + code + `'; END $$;
				UPDATE store SET lineage = replace(lineage, '/1/', '/7/');
				DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`)
			driver, err = postgres.Open(t.Context(), dsn, postgres.Options{})
			if !isRefusal {
				if !errors.Is(err, sqlstore.ErrUnavailable) {
					t.Errorf("the start: %v", err)
				}
				execute(`DROP FUNCTION public.pg_control_system()`)
				driver, err = postgres.Open(t.Context(), dsn, postgres.Options{})
			}
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			if state, err := driver.State(t.Context()); err != nil || (state.Epoch == before.Epoch) != isRefusal {
				t.Errorf("%+v, %v; before %+v", state, err, before)
			}
		})
	}
}

// A read that finds another store waits for the one that follows it no longer than its caller does.
func TestAdopt_WaitsForItsTurnUntilTheDeadline(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{LockTimeout: recovery})
	defer driver.Close()
	holder, admin := connect(t, dsn), connect(t, dsn)
	if err := holder.PgConn().Exec(t.Context(), `UPDATE store SET lineage = 'restored'`).Close(); err != nil {
		t.Fatal(err)
	}
	if err := holder.PgConn().Exec(t.Context(), `BEGIN; SELECT FROM store FOR UPDATE`).Close(); err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() {
		_, err := driver.State(t.Context())
		first <- err
	}()
	storetest.EventuallyDone(t, "the first waits for the writers' lock",
		func(ctx context.Context) (isWaiting bool, err error) {
			err = admin.QueryRow(ctx,
				`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&isWaiting)
			return isWaiting, err
		})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := driver.State(ctx); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("the second: %v", err)
	}
	select {
	case err := <-first:
		t.Fatalf("the second has waited for the first, which ends with %v", err)
	default:
	}
	if _, err := holder.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	<-first
	if _, err := driver.State(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

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
	if _, err := driver.List(t.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}},
		func(r sqlstore.Record) error {
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
	for _, statement := range []string{`DELETE FROM current_objects WHERE revision > $1`,
		`DELETE FROM undo_log WHERE revision > $1`} {
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
					if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: after, Limit: 10}); !errors.Is(err,
						sqlstore.ErrCompacted) {
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
				if err := connect(t, dsn).QueryRow(t.Context(), `SELECT count(*) FROM undo_log`).Scan(&left); err != nil ||
					left != 0 {
					t.Errorf("%d changes are left, %v", left, err)
				}
				if again, err := driver.State(t.Context()); err != nil || again.Revision != state.Revision+1 ||
					again.Epoch != state.Epoch {
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
	if _, err := ahead.Changes(t.Context(), sqlstore.ChangesQuery{After: 4, Limit: 1}); !errors.Is(err,
		sqlstore.ErrCompacted) {
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
	if _, _, err := other.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: sqlstore.Resource{Resource: "pods"}, UpTo: 4, Limit: 10}); err != nil {
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
