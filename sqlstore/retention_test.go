package sqlstore_test

import (
	"bytes"
	"cmp"
	"context"
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
		if _, err := model.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte("1")}}); err != nil {
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
func runFor(t *testing.T, model *storetest.Model, long time.Duration, options sqlstore.Options) (left int64, log string) {
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
		"dropped":  {},
		"mistyped": {RetentionFor: []sqlstore.ResourceRetention{{GroupResource: sqlstore.GroupResource{Group: "app", Resource: "deployments"}, Age: month}}},
		"bounded":  {RetentionChanges: 1},
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
			if left != 0 || !strings.Contains(log, `level=WARN msg="store: deleted history that was kept for longer before" resource=deployments.apps changes=9 before=720h0m0s`) {
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
				if _, err := model.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte("1")}}); err != nil {
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
		always := sqlstore.Options{RetentionFor: []sqlstore.ResourceRetention{{GroupResource: sqlstore.GroupResource{Resource: "*"}, Age: -1}}}
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
		store := sqlstore.New(model, sqlstore.Options{Retention: day, RetentionChanges: 3, Registerer: registry, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = store.Run(ctx) })
		for i := range 30 {
			write := sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Group: "apps", Resource: "deployments", Name: fmt.Sprint(i)}, Value: []byte("1")}
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
// written before the start and in these days is deleted at its age, and not before.
func TestRetention_ClockBehindAtTheStart(t *testing.T) {
	t.Parallel()
	const year = 365 * day
	for name, test := range map[string]struct {
		compactedAt   time.Duration // since the clock was set
		before, after int64         // how many changes are left then
	}{
		"retention before the age of the older": {4*day - 2*time.Hour, 2, 2},
		"retention after it":                    {4 * day, 1, 1},
		"retention before the age of the other": {7*day - time.Hour, 1, 1},
		"retention after that":                  {7*day + time.Hour, 0, 0},
		"compact at once":                       {2 * time.Minute, 2, 1},
		"compact after an hour":                 {time.Hour + 2*time.Minute, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				model := storetest.NewModel()
				var behind atomic.Int64
				model.Clock = func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
				write := func(name string) {
					key := sqlstore.Key{Group: "apps", Resource: "deployments", Name: name}
					if _, err := model.Commit(t.Context(), []sqlstore.Write{{Op: sqlstore.Create, Key: key, Value: []byte("1")}}); err != nil {
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
