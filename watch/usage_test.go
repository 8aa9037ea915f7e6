package watch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"byre/sqlstore"
)

// usage counts the records of the source.
func (f *fixture) usage(r sqlstore.Resource) Usage {
	f.t.Helper()
	var sum Usage
	q := sqlstore.Query{Range: sqlstore.Range{Group: r.Group, Resource: r.Resource, Owner: r.Owner}}
	if _, err := f.source.List(f.t.Context(), q, func(r sqlstore.Record) error {
		sum.Objects++
		sum.Bytes += int64(len(r.Value))
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	return sum
}

func (f *fixture) checkUsage(what string, resources ...sqlstore.Resource) {
	f.t.Helper()
	for _, r := range resources {
		got, err := f.WaitForUsage(f.t.Context(), r)
		if want := f.usage(r); err != nil || got != want {
			f.t.Errorf("%s: %v: %+v, %v; want %+v", what, r, got, err, want)
		}
	}
}

// The feed's counts equal the store's, whether this process or another one writes, and whether or
// not the resource is in memory. A built-in and a custom resource of one name have separate
// counts.
func TestUsage_EqualsTheStores(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: never})
	all := []sqlstore.Resource{pods, {Group: "apps", Resource: "deployments"}, {Resource: "pods", Owner: sqlstore.Custom}}
	f.snapshot() // pods are in memory, the others are not
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		r := all[random.IntN(len(all))]
		key := sqlstore.Key{Group: r.Group, Resource: r.Resource, Owner: r.Owner, Name: fmt.Sprint(random.IntN(20))}
		_, _, missing := f.source.Get(t.Context(), key)
		var c sqlstore.Change
		if missing == nil && random.IntN(3) == 0 {
			c = f.remove(key)
		} else {
			c = f.put(key, fmt.Sprintf("%0*d", 1+random.IntN(50), 0))
		}
		if random.IntN(2) == 0 { // otherwise the feed reads it from the store
			f.Publish([]sqlstore.Change{c})
		}
		if i%50 == 0 {
			if err := f.WaitFor(t.Context(), c.Revision); err != nil {
				t.Fatal(err)
			}
			f.checkUsage(fmt.Sprint("after ", i), all...)
		}
	}
	if err := f.WaitFor(t.Context(), 400); err != nil {
		t.Fatal(err)
	}
	f.checkUsage("at the end", all...)
	if got := len(f.AllUsage()); got != len(all) {
		t.Errorf("%d resources, want %d", got, len(all))
	}
	if err := f.reset(t.Context(), resetRestored); err != nil {
		t.Fatal(err)
	}
	f.checkUsage("after a reset", all...)
}

// Changes that are made while the database counts are counted once.
func TestUsage_CountsWritesDuringTheCountOnce(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	f.write(pod("a", "x"), "123")
	f.checkUsage("first", pods)
	asked, answer := make(chan struct{}), make(chan struct{})
	f.source.answer(func(s *source) {
		s.usage = func() {
			asked <- struct{}{}
			<-answer
		}
	})
	counted := f.usages.restart(f.Revision())
	f.spawn(func(ctx context.Context) { f.count(ctx, counted) })
	<-asked
	f.write(pod("a", "y"), "4567")
	f.write(pod("a", "x"), "1")
	if _, known := f.Usage(pods); known || f.AllUsage() != nil {
		t.Error("known before it was counted")
	}
	close(answer)
	f.checkUsage("counted", pods)
}

// While the database can't count, the feed's memory is bounded: it stores no events between two
// attempts, and a bounded number of events during an attempt.
func TestUsage_BacklogIsBounded(t *testing.T) {
	t.Parallel()
	f := start(t, Options{Interval: never})
	f.awaitUsage()
	counted := f.usages.restart(f.Revision())
	apply := func(n int) (kept int) {
		ev := eventOf(sqlstore.Change{Op: sqlstore.Create, New: sqlstore.Record{Key: pod("a", "x")}})
		f.usages.apply(slices.Repeat([]Event{ev}, n))
		f.usages.mu.RLock()
		defer f.usages.mu.RUnlock()
		return len(f.backlog)
	}
	if kept := apply(10); kept > 0 {
		t.Errorf("%d events are kept before an attempt", kept)
	}
	f.beginCount(counted)
	if kept := apply(10); kept != 10 {
		t.Errorf("%d events are kept during an attempt", kept)
	}
	if kept := apply(maxUsageBacklog); kept > maxUsageBacklog {
		t.Errorf("%d events are kept", kept)
	}
	if f.endCount(sqlstore.Usage{Revision: f.Revision()}, nil, counted) {
		t.Error("the feed has taken over counts without the events that they lack")
	}
	if kept := apply(10); kept > 0 {
		t.Errorf("%d events are kept after an attempt", kept)
	}
}
