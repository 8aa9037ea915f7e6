package sqlstore_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

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
				_, _ = store.CompactOlder(ctx, sqlstore.Compaction{UpTo: 1_000_000})
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
			_, _ = sqlstore.New(b, sqlstore.Options{}).CompactOlder(ctx, sqlstore.Compaction{UpTo: 1_000_000})
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
			batch[i] = sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)},
				Value: []byte("{}")}
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
		if plan, err := store.PlanCompaction(t.Context(), sqlstore.Compaction{Keep: time.Hour}); err != nil ||
			plan != (sqlstore.CompactionPlan{UpTo: changes, Younger: changes}) {
			t.Errorf("with what is younger: %+v, %v", plan, err)
		}
		var deleted int64
		calls := 0
		for done := (sqlstore.Compacted{}); done.Revision == 0; calls++ {
			limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			began := time.Now()
			done, err = store.CompactOlder(limited, sqlstore.Compaction{UpTo: plan.UpTo})
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 100*time.Millisecond ||
				calls > 100 {
				t.Fatalf("%+v after %v: %v", done, time.Since(began), err)
			}
			deleted += done.Deleted
		}
		if deleted != changes || calls < 2 {
			t.Errorf("%d changes were deleted in %d calls", deleted, calls)
		}
	})
}

const (
	day   = 24 * time.Hour
	month = 30 * day
)

var deployments = sqlstore.Resource{Group: "apps", Resource: "deployments"}

// keptDatabase is a database with six changes of deployments, one of pods and then three more of
// deployments, a day between each two, after a process that kept those of deployments for a month.
func keptDatabase(t *testing.T) *storetest.Model {
	t.Helper()
	model := storetest.NewModel()
	for i := range 10 {
		key := sqlstore.Key{Group: "apps", Resource: "deployments", Name: fmt.Sprint(i)}
		if i == 6 {
			key = sqlstore.Key{Resource: "pods", Name: "a"}
		}
		if _, err := model.Commit(t.Context(),
			[]sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte("1")}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(day)
	}
	if _, log := runFor(t, model, time.Hour, monthOfDeployments); log != "" {
		t.Fatal(log)
	}
	return model
}

var monthOfDeployments = sqlstore.Options{RetentionFor: []sqlstore.ResourceRetention{
	{GroupResource: sqlstore.GroupResource{Group: "apps", Resource: "deployments"}, Age: month},
}}

// runFor runs a store for some time, and returns how many changes of deployments are left, and what
// it has logged.
func runFor(
	t *testing.T, model *storetest.Model, long time.Duration, options sqlstore.Options,
) (left int64, log string) {
	t.Helper()
	var out bytes.Buffer
	options.Logger = slog.New(slog.NewTextHandler(&out, nil))
	options.Retention = cmp.Or(options.Retention, day)
	store := sqlstore.New(model, options)
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(ctx) })
	running.Wait()
	left, _, err := model.CountChanges(t.Context(), deployments, math.MaxInt64, 100)
	if err != nil {
		t.Fatal(err)
	}
	return left, out.String()
}

// What another process has kept for longer is deleted after a day, and the log says so before and
// afterwards.
func TestRetention_KeepsForADayWhatNoOptionKeeps(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]sqlstore.Options{
		"dropped": {},
		"mistyped": {RetentionFor: []sqlstore.ResourceRetention{{GroupResource: sqlstore.GroupResource{Group: "app",
			Resource: "deployments"}, Age: month}}},
		"bounded": {RetentionChanges: 1},
		"shorter": {RetentionFor: []sqlstore.ResourceRetention{
			{GroupResource: sqlstore.GroupResource{Group: "apps", Resource: "deployments"}, Age: 2 * day},
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			model := keptDatabase(t)
			for range 3 { // a restart does not make it sooner
				left, log := runFor(t, model, day-time.Hour, options)
				if left != 9 {
					t.Errorf("%s: %d changes are left before the end of the day, want 9", name, left)
				}
				if strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "resource=deployments.apps before=720h0m0s") {
					t.Errorf("%s: the log has %s", name, log)
				}
			}
			left, log := runFor(t, model, day+time.Hour, options)
			if left != 0 ||
				!strings.Contains(log,
					`level=WARN msg="store: deleted history that was kept for longer before" resource=deployments.apps changes=9 before=720h0m0s`) {
				t.Errorf("%s: %d changes are left after a day; the log has %s", name, left, log)
			}
		})
	}
}

// A resource whose history is kept for less long than that of others loses it first.
func TestRetention_IsShorterForOneResource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		for range 5 {
			for _, key := range []sqlstore.Key{{Group: "apps", Resource: "deployments"}, {Resource: "pods"}} {
				key.Name = time.Now().Format(time.DateOnly)
				if _, err := model.Commit(t.Context(),
					[]sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte("1")}}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(day)
		}
		left, _ := runFor(t, model, time.Hour, sqlstore.Options{Retention: month, RetentionFor: []sqlstore.ResourceRetention{
			{GroupResource: sqlstore.GroupResource{Resource: "pods"}, Age: 2*day + time.Hour},
		}})
		pods, _, err := model.CountChanges(t.Context(), sqlstore.Resource{Resource: "pods"}, math.MaxInt64, 100)
		if left != 5 || pods != 2 || err != nil {
			t.Errorf("%d changes of deployments and %d of pods are left, %v; want 5 and 2", left, pods, err)
		}
	})
}

// A process whose options keep the history, and one that was stopped for long, delete only what is
// too old, and do so at once.
func TestRetention_DeletesAtOnceWhatTheLastProcessDidNotKeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		model := keptDatabase(t)
		time.Sleep(month - 4*day)
		if left, log := runFor(t, model, time.Hour, monthOfDeployments); left != 3 || log != "" {
			t.Errorf("%d changes are left, want 3; the log has %s", left, log)
		}
		// It is known at once that the history is kept for longer now.
		always := sqlstore.Options{RetentionFor: []sqlstore.ResourceRetention{
			{GroupResource: sqlstore.GroupResource{Resource: "*"}, Age: -1},
		}}
		runFor(t, model, time.Hour, always)
		if left, log := runFor(t, model, 2*time.Hour, monthOfDeployments); left != 3 || log != "" {
			t.Errorf("%d changes are left, want 3; the log has %s", left, log)
		}
		histories, err := model.Histories(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range histories {
			if want := map[string]time.Duration{"deployments": month, "pods": day}[h.Resource.Resource]; h.RetainedFor != want {
				t.Errorf("%v is kept for %v, want %v", h.Resource, h.RetainedFor, want)
			}
		}
	})
}

// Where the number of changes decides, a metric counts what it deletes, and the log says so once.
func TestRetention_TellsWhenTheNumberDecides(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		model, registry := storetest.NewModel(), prometheus.NewRegistry()
		var out bytes.Buffer
		store := sqlstore.New(model,
			sqlstore.Options{Retention: day, RetentionChanges: 3, Registerer: registry,
				Logger: slog.New(slog.NewTextHandler(&out, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = store.Run(ctx) })
		for i := range 30 {
			write := sqlstore.Write{Op: sqlstore.Create,
				Key: sqlstore.Key{Group: "apps", Resource: "deployments", Name: fmt.Sprint(i)}, Value: []byte("1")}
			if _, err := store.Commit(t.Context(), write); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Hour)
		cancel()
		running.Wait()
		left, _, err := model.CountChanges(t.Context(), deployments, math.MaxInt64, 100)
		if err != nil || left != 3 {
			t.Errorf("%d changes are left, want 3: %v", left, err)
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP byre_store_history_cut_total Changes deleted before their age because a resource had more than --retention-changes.
# TYPE byre_store_history_cut_total counter
byre_store_history_cut_total{group="apps",resource="deployments"} 27
`), "byre_store_history_cut_total"); err != nil {
			t.Error(err)
		}
		if log := out.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "not their age, decides") ||
			!strings.Contains(log, "resource=deployments.apps changes=3 retention=24h0m0s") {
			t.Errorf("the log has %s", log)
		}
	})
}

// A process starts with a clock that is a year behind, and is set right three days later. What was
// written before the start and in these days is deleted not before its age, and at the latest when that has passed
// since the clock was set.
func TestRetention_ClockBehindAtTheStart(t *testing.T) {
	t.Parallel()
	const year = 365 * day
	for name, test := range map[string]struct {
		compactedAt   time.Duration // since the clock was set
		before, after int64         // how many changes are left then
	}{
		"retention before the age": {7*day - time.Hour, 2, 2},
		"retention after it":       {7*day + time.Hour, 0, 0},
		"compact at once":          {2 * time.Minute, 2, 2},
		"compact after an hour":    {time.Hour + 2*time.Minute, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				model := storetest.NewModel()
				var behind atomic.Int64
				model.Clock = func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
				write := func(name string) {
					key := sqlstore.Key{Group: "apps", Resource: "deployments", Name: name}
					if _, err := model.Commit(t.Context(),
						[]sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte("1")}}); err != nil {
						t.Fatal(err)
					}
				}
				expectLeft := func(want int64) {
					t.Helper()
					if left, _, err := model.CountChanges(t.Context(), deployments, math.MaxInt64, 100); left != want || err != nil {
						t.Errorf("%d changes are left, %v; want %d", left, err, want)
					}
				}
				write("older")
				time.Sleep(time.Hour)
				behind.Store(int64(year))
				store := sqlstore.New(model, sqlstore.Options{ExpireInterval: time.Minute})
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { _ = store.Run(ctx) })
				time.Sleep(3*day - time.Minute/2)
				write("newer")
				behind.Store(0)
				time.Sleep(test.compactedAt)
				expectLeft(test.before)
				if strings.HasPrefix(name, "compact") {
					if _, err := store.CompactOlder(ctx, sqlstore.Compaction{Keep: time.Hour}); err != nil {
						t.Error(err)
					}
				}
				expectLeft(test.after)
				cancel()
				running.Wait()
			})
		})
	}
}
