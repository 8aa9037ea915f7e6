package inprocess

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"byre/e2e/document"
	"byre/e2e/robustness/check"
	"byre/e2e/robustness/tables"
	"byre/sqlstore"
)

// TestStore_KeepsPromises judges byre without a fault.
func TestStore_KeepsPromises(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{tables.SQLite, tables.Postgres} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, kind, fault{})
			for range 3 {
				violations, err := l.round()
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range violations {
					t.Error(v)
				}
			}
		})
	}
}

var docs = flag.String("docs", "", "write the table of seeded faults into reliability.md of this folder")

// seeded are the faults that the judge must find.
var seeded = []struct {
	name  string
	kinds []string
	fault func() fault
}{
	{"a lost event", both, losesEvents},
	{"a reordered publish", both, reordersEvents},
	{"a revision from MAX", sqliteOnly, takesRevisionFromRows},
	{"a missing fsync", sqliteOnly, forgetsCommits},
	{"a compaction that forgets a tombstone", both, forgetsTombstones},
	{"a stale read after a failover", both, readsStaleState},
	{"a swapped entry of the representation cache", both, swapsRepresentations},
	{"a precondition that is not checked", both, ignoresPreconditions},
	{"a write that is made twice", both, repeatsWrites},
}

var both, sqliteOnly = []string{tables.SQLite, tables.Postgres}, []string{tables.SQLite}

// TestJudge_FindsSeededFaults puts a fault into a replica, between two layers, and
// expects the judge to find it.
func TestJudge_FindsSeededFaults(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	// found has after how long a fault was found, by its name and the database.
	found := map[string]string{}
	t.Cleanup(func() { // after the parallel tests
		if *docs == "" {
			return
		}
		table := "| fault, found after | sqlite | postgres |\n|---|---:|---:|\n"
		for _, s := range seeded {
			table += fmt.Sprintf("| %s | %s | %s |\n", s.name, found[s.name+tables.SQLite], found[s.name+tables.Postgres])
		}
		if err := document.Update(filepath.Join(*docs, "reliability.md"), "robustness",
			map[string]string{"seeded": table}); err != nil {
			t.Error(err)
		}
	})
	for _, s := range seeded {
		for _, kind := range s.kinds {
			t.Run(s.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				violation, after := find(t, newLab(t, kind, s.fault()))
				t.Logf("%s on %s: found after %.2f s: %s", s.name, kind, after.Seconds(), violation)
				mu.Lock()
				defer mu.Unlock()
				found[s.name+kind] = fmt.Sprintf("%.1f s", after.Seconds())
			})
		}
	}
}

// patience bounds the search for a fault. It is a time and not a number of rounds, since a
// round has fewer operations on a slower machine.
const patience = 3 * time.Minute

// find returns the first violation, and after how long it was found.
func find(t *testing.T, l *lab) (check.Violation, time.Duration) {
	t.Helper()
	begin := time.Now()
	for time.Since(begin) < patience {
		violations, err := l.round()
		if err != nil {
			t.Fatal(err)
		}
		if len(violations) > 0 {
			return violations[0], time.Since(begin)
		}
	}
	t.Fatalf("not found in %v", time.Since(begin))
	return check.Violation{}, 0
}

// losesEvents withholds some changes from the watchers of their resource.
func losesEvents() fault {
	loses := everyNth(40)
	return fault{layers: func(sqlstore.Driver) Layers {
		return Layers{Publish: func(next sqlstore.Publish) sqlstore.Publish {
			return func(changes []sqlstore.Change) {
				changes = slices.Clone(changes)
				for i := range changes {
					if loses() {
						changes[i].New.Resource = "others"
						if changes[i].Old != nil {
							old := *changes[i].Old
							old.Resource = "others"
							changes[i].Old = &old
						}
					}
				}
				next(changes)
			}
		}}
	}}
}

// reordersEvents has some pairs of changes published with each other's revision.
func reordersEvents() fault {
	swaps := everyNth(20)
	return fault{layers: func(sqlstore.Driver) Layers {
		return Layers{Publish: func(next sqlstore.Publish) sqlstore.Publish {
			var mu sync.Mutex
			var held *sqlstore.Change
			// release publishes a held change that no other change has followed. Without it a feed
			// on SQLite would never get that change.
			release := func() {
				mu.Lock()
				defer mu.Unlock()
				if held != nil {
					next([]sqlstore.Change{*held})
					held = nil
				}
			}
			return func(changes []sqlstore.Change) {
				mu.Lock()
				defer mu.Unlock()
				changes = slices.Clone(changes)
				if held != nil && changes[0].Revision == held.Revision+1 {
					first, second := *held, changes[0]
					first.Revision, second.Revision = second.Revision, first.Revision
					first.New.Revision, second.New.Revision = first.Revision, second.Revision
					changes = append([]sqlstore.Change{second, first}, changes[1:]...)
					held = nil
				}
				if held == nil && len(changes) == 1 && swaps() {
					held = &changes[0]
					time.AfterFunc(100*time.Millisecond, release)
					return
				}
				if held != nil {
					changes = append([]sqlstore.Change{*held}, changes...)
					held = nil
				}
				next(changes)
			}
		}}
	}}
}

// takesRevisionFromRows restarts the store with the greatest revision of the remaining rows
// as its current revision.
func takesRevisionFromRows() fault {
	return fault{during: func(ctx context.Context, l *lab) error {
		return l.restart(ctx, func(ctx context.Context) error {
			return errors.Join(
				l.exec(ctx, `DELETE FROM current_objects WHERE revision = (SELECT max(revision) FROM current_objects)`),
				l.exec(ctx, `DELETE FROM undo_log`),
				l.exec(ctx,
					`UPDATE store SET revision = (SELECT max(revision) FROM current_objects), compacted = (SELECT max(revision) FROM current_objects)`))
		})
	}}
}

// forgetsCommits crashes the replica and removes the last acknowledged commits from the disk.
func forgetsCommits() fault {
	return fault{during: func(ctx context.Context, l *lab) error {
		synced := l.address + ".synced"
		if err := errors.Join(pause(ctx, 150*time.Millisecond), l.exec(ctx, `VACUUM INTO '`+synced+`'`)); err != nil {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		return l.restart(ctx, func(context.Context) error {
			for _, side := range []string{"-wal", "-shm"} {
				if err := os.Remove(l.address + side); err != nil && !os.IsNotExist(err) {
					return err
				}
			}
			return os.Rename(synced, l.address)
		})
	}}
}

// restart stops the first replica in the middle of the round, does something to its
// database and starts it again.
func (l *lab) restart(ctx context.Context, do func(context.Context) error) error {
	if err := errors.Join(pause(ctx, 100*time.Millisecond), l.stop(0)); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the round may end meanwhile
	return errors.Join(do(ctx), l.start(ctx, 0))
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(d):
		return nil
	}
}

// forgetsTombstones makes compactions remove a delete that is still within the history.
func forgetsTombstones() fault {
	return fault{during: func(ctx context.Context, l *lab) error {
		for ctx.Err() == nil {
			if err := pause(ctx, 100*time.Millisecond); err != nil || ctx.Err() != nil {
				return err
			}
			err := l.exec(context.WithoutCancel(ctx), `DELETE FROM undo_log WHERE revision =
				(SELECT max(revision) FROM changes WHERE op = 'delete' AND revision > (SELECT compacted FROM counters))`)
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

// staleDriver answers for a while, from time to time, with an older state, as a standby does
// that a replica takes for the primary.
type staleDriver struct {
	sqlstore.Driver
	mu    sync.Mutex
	state sqlstore.State
	until time.Time
	begin time.Time
}

// State implements sqlstore.Driver. At times it returns an older state.
func (d *staleDriver) State(ctx context.Context) (sqlstore.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Before(d.until) {
		return d.state, nil
	}
	state, err := d.Driver.State(ctx)
	if err == nil && now.Sub(d.begin) > 200*time.Millisecond {
		d.state, d.until, d.begin = state, now.Add(100*time.Millisecond), now.Add(100*time.Millisecond)
	}
	return state, err
}

func readsStaleState() fault {
	return fault{
		driver: func(d sqlstore.Driver) sqlstore.Driver { return &staleDriver{Driver: d, begin: time.Now()} },
		// Without published changes the replica has only the driver's stale state, even of
		// its own writes.
		layers: func(sqlstore.Driver) Layers {
			return Layers{Publish: func(sqlstore.Publish) sqlstore.Publish { return func([]sqlstore.Change) {} }}
		},
	}
}

// swapsRepresentations makes the cache keep the protobuf of another object for some objects.
func swapsRepresentations() fault {
	swaps := everyNth(20)
	var mu sync.Mutex
	var last []byte
	return fault{layers: func(sqlstore.Driver) Layers {
		return Layers{Encode: func(cm *corev1.ConfigMap) ([]byte, error) {
			data, err := cm.Marshal()
			mu.Lock()
			defer mu.Unlock()
			other := last
			last = data
			if swaps() && other != nil {
				return other, err
			}
			return data, err
		}}
	}}
}

// carelessDriver does not check some preconditions.
type carelessDriver struct {
	sqlstore.Driver
	ignores func() bool
}

// Commit implements sqlstore.Driver. Some writes replace whatever is stored.
func (d carelessDriver) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	batch = slices.Clone(batch)
	for i, w := range batch {
		if w.Op == sqlstore.Create || !d.ignores() {
			continue
		}
		if record, _, err := d.Get(ctx, w.Key); err == nil {
			batch[i].Replaces = record.Revision
		}
	}
	return d.Driver.Commit(ctx, batch)
}

func ignoresPreconditions() fault {
	return fault{driver: func(d sqlstore.Driver) sqlstore.Driver { return carelessDriver{d, everyNth(2)} }}
}

// repeatingDriver makes some writes again, as one that takes an unknown outcome for a
// failure.
type repeatingDriver struct {
	sqlstore.Driver
	repeats func() bool
}

// Commit implements sqlstore.Driver. It commits some writes twice.
func (d repeatingDriver) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	outcomes, err := d.Driver.Commit(ctx, batch)
	if err != nil || len(batch) != 1 || outcomes[0].Err != nil || batch[0].Op == sqlstore.Delete || !d.repeats() {
		return outcomes, err
	}
	again := batch[0]
	again.Op, again.Replaces = sqlstore.Update, outcomes[0].Revision
	return d.Driver.Commit(ctx, []sqlstore.Write{again})
}

func repeatsWrites() fault {
	return fault{driver: func(d sqlstore.Driver) sqlstore.Driver { return repeatingDriver{d, everyNth(20)} }}
}
