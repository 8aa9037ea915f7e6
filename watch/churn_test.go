package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"byre/sqlstore"
)

// Each kind of subscription gets every change of its interest once and in order, and the
// counts of usage stay right, while the feed unloads, loads, forgets and resets records, pages
// of history and indexes.
func TestSubscription_SeesEachChangeWhileStateIsUnloaded(t *testing.T) {
	t.Parallel()
	const n = 4000
	f := start(t, Options{RingEvents: 32})
	first := f.write(pod("a", "keep"), "v0").Revision
	last := first + n
	if err := f.WaitFor(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	index := byValue()
	ctx, stop := context.WithCancel(t.Context())
	var disturbers sync.WaitGroup
	disturbers.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			f.disturb(ctx, i, index)
		}
	})
	subscribe := func(want Interest) func(int64) (*Subscription, error) {
		want.Resource = pods
		return func(after int64) (*Subscription, error) { return f.Subscribe(ctx, want, after) }
	}
	isPod := func(c sqlstore.Change) bool { return c.New.Resource == "pods" }
	kinds := map[string]struct {
		subscribe func(after int64) (*Subscription, error)
		wants     func(sqlstore.Change) bool
	}{
		"all":    {subscribe(Interest{}), isPod},
		"follow": {func(after int64) (*Subscription, error) { return f.Follow(ctx, pods, after) }, isPod},
		"name": {subscribe(Interest{Namespace: "a", Name: "3"}), func(c sqlstore.Change) bool {
			return isPod(c) && c.New.Name == "3"
		}},
		"index": {subscribe(Interest{Match: MatchValue{index, "v2"}}), func(c sqlstore.Change) bool {
			return isPod(c) && (string(c.New.Value) == "v2" || c.Old != nil && string(c.Old.Value) == "v2")
		}},
	}
	seen := map[string]*[]int64{}
	var readers sync.WaitGroup
	for name, kind := range kinds {
		revisions := &[]int64{}
		seen[name] = revisions
		readers.Go(func() {
			if err := readWithBreaks(ctx, kind.subscribe, first, last, revisions); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	changes := f.publishRandomly(n)
	readers.Wait()
	stop()
	disturbers.Wait()
	for name, kind := range kinds {
		var want []int64
		for _, c := range changes {
			if kind.wants(c) {
				want = append(want, c.Revision)
			}
		}
		if fmt.Sprint(*seen[name]) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", name, *seen[name], want)
		}
	}
	stored, err := f.source.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range stored.Resources {
		got, err := f.WaitForUsage(t.Context(), sqlstore.Resource{Group: r.Group, Resource: r.Resource, Owner: r.Owner})
		if want := (Usage{r.Objects, r.Bytes}); err != nil || got != want {
			t.Errorf("usage of %s: %v, %v; want %v", r.Resource, got, err, want)
		}
	}
}

// disturb unloads state and loads it again.
func (f *fixture) disturb(ctx context.Context, round int, index *Index) {
	f.checks(idleChecks + 1)
	f.changePages.dropUnused()
	if round%7 == 0 {
		f.Forget(pods)
	}
	if round%50 == 0 {
		if err := f.reset(ctx, resetHole); err != nil {
			f.t.Error(err)
		}
	}
	if s, err := f.SnapshotIndexed(ctx, pods, index); err == nil && s.Get("a", "keep") == nil {
		f.t.Error("a snapshot lacks what was always there")
	}
}

// publishRandomly makes n changes and publishes them, a few at a time, without the values
// that they replaced, as a store does.
func (f *fixture) publishRandomly(n int) (changes []sqlstore.Change) {
	random := rand.New(rand.NewPCG(1, 2))
	var batch []sqlstore.Change
	for range n {
		key := pod("a", fmt.Sprint(1+random.IntN(20)))
		if random.IntN(3) == 0 {
			key.Resource = "others"
		}
		var c sqlstore.Change
		if _, _, err := f.source.Get(f.t.Context(), key); err == nil && random.IntN(3) == 0 {
			c = f.remove(key)
		} else {
			c = f.put(key, fmt.Sprintf("v%d", random.IntN(4)))
		}
		changes = append(changes, c)
		if c.Old != nil {
			old := *c.Old
			old.Value, c.Old = nil, &old
		}
		if batch = append(batch, c); random.IntN(3) == 0 {
			f.Publish(batch)
			batch = nil
		}
	}
	f.Publish(batch)
	return changes
}

// readWithBreaks reads changes up to the last one. It continues with another subscription from
// time to time, and when a subscription has ended.
func readWithBreaks(ctx context.Context, subscribe func(int64) (*Subscription, error), after, last int64, revisions *[]int64) error {
	random := rand.New(rand.NewPCG(3, 4))
	for after < last {
		s, err := subscribe(after)
		if err != nil {
			return err
		}
		for after < last && random.IntN(40) > 0 {
			var events []Event
			if events, after, err = s.Poll(ctx); err != nil {
				break
			}
			for _, ev := range events {
				*revisions = append(*revisions, ev.Revision)
			}
			if len(events) > 0 || after >= last {
				continue
			}
			select {
			case <-s.Ready():
			case <-ctx.Done():
				err = fmt.Errorf("after %d: %w", after, ctx.Err())
			}
		}
		s.Close()
		if err != nil && !errors.Is(err, ErrCompacted) {
			return err
		}
	}
	return nil
}
