package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// busy is a database whose writers make perSecond changes a second. Its compaction takes a
// millisecond for each change.
type busy struct {
	*storetest.Model
	perSecond int64
	began     time.Time
	compacted int64
	// working is the time that the compaction has taken, without that for which each chunk
	// waits for the writers' lock; waited is the sum of the waits.
	working, wait, waited time.Duration
}

func (b *busy) State(context.Context) (sqlstore.State, error) {
	written := b.perSecond * int64(time.Since(b.began)) / int64(time.Second)
	return sqlstore.State{Revision: 1_000_000 + written, Compacted: b.compacted}, nil
}

func (b *busy) Histories(context.Context) ([]sqlstore.History, error) {
	return []sqlstore.History{{Resource: sqlstore.Resource{Resource: "pods"}}}, nil
}

func (b *busy) DeleteHistory(_ context.Context, d sqlstore.Deletion) (deleted int, waited time.Duration, err error) {
	took := time.Duration(d.Limit) * time.Millisecond
	time.Sleep(took + b.wait)
	b.waited += b.wait
	b.working += took
	before := b.compacted
	b.compacted = min(b.compacted+int64(d.Limit), d.UpTo)
	return int(b.compacted - before), b.wait, nil
}

// A compaction takes a seventh of the time and leaves the rest to the writers. It keeps up with
// writers who make no more changes than it deletes in that time.
func TestCompact_KeepsUpWithTheWriters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		perSecond int64
		keepsUp   bool
	}{
		"no writes":                                    {perSecond: 0, keepsUp: true},
		"compacted in an eighth of the time":           {perSecond: 120, keepsUp: true},
		"too many to compact in a seventh of the time": {perSecond: 300, keepsUp: false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &busy{Model: storetest.NewModel(), perSecond: c.perSecond, began: time.Now()}
				store := sqlstore.New(b, sqlstore.Options{})
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				_ = store.Compact(ctx, 1_000_000)
				if share := b.working.Seconds() / time.Since(b.began).Seconds(); share < 0.140 || share > 0.145 {
					t.Errorf("the compaction takes %.3f of the time, want a seventh", share)
				}
				state, err := b.State(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				written := state.Revision - 1_000_000
				if keepsUp := state.Compacted >= written-5*c.perSecond; keepsUp != c.keepsUp {
					t.Errorf("%d changes were compacted while %d were made", state.Compacted, written)
				}
			})
		})
	}
}

// If a chunk waits for the writers' lock, the next chunk is not smaller and the pause between them
// not longer: the writers lose nothing while it waits.
func TestCompact_DoesNotPauseForItsWaits(t *testing.T) {
	t.Parallel()
	compacted := func(wait time.Duration) (changes int64, chunks time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			b := &busy{Model: storetest.NewModel(), perSecond: 90, began: time.Now(), wait: wait}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_ = sqlstore.New(b, sqlstore.Options{}).Compact(ctx, 1_000_000)
			changes, chunks = b.compacted, b.waited/max(wait, 1)
		})
		return changes, chunks
	}
	without, _ := compacted(0)
	// A chunk takes 20 ms of work at most, and is followed by a pause of 60 to 120 ms.
	with, chunks := compacted(50 * time.Millisecond)
	if with < without/2 {
		t.Errorf("%d changes are compacted in %d chunks that wait, and %d without waits", with, chunks, without)
	}
}

// returning is a database that returns space without end.
type returning struct{ *storetest.Model }

func (returning) Shrink(context.Context, int) (done bool, err error) {
	time.Sleep(10 * time.Millisecond)
	return false, nil
}

// The compaction of an operator takes turns with that of the server, which may work for hours: it neither waits for
// its end, nor for longer than it may. What one call has not deleted the next one deletes.
func TestCompactOlder_ProceedsBesideTheServersOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const changes = 1000
		model := storetest.NewModel()
		batch := make([]sqlstore.Write, changes)
		for i := range batch {
			batch[i] = sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)}, Value: []byte("{}")}
		}
		if _, err := model.Commit(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		store := sqlstore.New(returning{model}, sqlstore.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = store.Run(ctx) })
		defer running.Wait()
		defer cancel()
		time.Sleep(2 * time.Minute) // the server's own compaction returns space

		plan, err := store.PlanCompaction(t.Context(), sqlstore.Compaction{})
		if err != nil || plan != (sqlstore.CompactionPlan{UpTo: changes, Older: changes}) {
			t.Errorf("%+v, %v", plan, err)
		}
		if plan, err := store.PlanCompaction(t.Context(), sqlstore.Compaction{Keep: time.Hour}); err != nil || plan != (sqlstore.CompactionPlan{UpTo: changes, Younger: changes}) {
			t.Errorf("with what is younger: %+v, %v", plan, err)
		}
		var deleted int64
		calls := 0
		for done := (sqlstore.Compacted{}); done.Revision == 0; calls++ {
			limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			began := time.Now()
			done, err = store.CompactOlder(limited, sqlstore.Compaction{UpTo: plan.UpTo})
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 100*time.Millisecond || calls > 100 {
				t.Fatalf("%+v after %v: %v", done, time.Since(began), err)
			}
			deleted += done.Deleted
		}
		if deleted != changes || calls < 2 {
			t.Errorf("%d changes were deleted in %d calls", deleted, calls)
		}
	})
}
