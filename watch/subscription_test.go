package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// Only a change of its interest wakes a subscriber.
func TestSubscription_WakesForItsInterestOnly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		want  Interest
		wakes map[sqlstore.Key]bool // which keys wake it when they are written
	}{
		{"all", Interest{}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): true, pod("", "z"): true}},
		{"namespace", Interest{Namespace: "a"}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "x"): false}},
		{"name", Interest{Namespace: "a", Name: "x"},
			map[sqlstore.Key]bool{pod("a", "x"): true, pod("a", "y"): false, pod("b", "x"): false}},
		{"name anywhere", Interest{Name: "x"},
			map[sqlstore.Key]bool{pod("a", "x"): true, pod("a", "y"): false, pod("", "x"): true}},
		{"index", Interest{Match: MatchValue{byValue(), "1"}},
			map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): true}},
		{"another value", Interest{Match: MatchValue{byValue(), "2"}}, map[sqlstore.Key]bool{pod("a", "x"): false}},
		{"index in a namespace", Interest{Namespace: "a", Match: MatchValue{byValue(), "1"}},
			map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): false, pod("", "z"): false}},
	} {
		for key, wakes := range test.wakes {
			t.Run(fmt.Sprintf("%s/%s/%s", test.name, key.Namespace, key.Name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { checkWaking(t, test.want, key, wakes) })
			})
		}
	}
}

// checkWaking writes a key and checks whether that wakes a subscription.
func checkWaking(t *testing.T, want Interest, key sqlstore.Key, wakes bool) {
	f := start(t, Options{})
	s := f.subscribe(want, 0)
	if events, _, err := s.Poll(t.Context()); err != nil || len(events) > 0 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	f.write(key, "1")
	synctest.Wait()
	select {
	case <-s.Ready():
		if !wakes {
			t.Error("was woken")
		}
	default:
		if wakes {
			t.Error("was not woken")
		}
	}
	events, upTo, err := s.Poll(t.Context())
	if err != nil || (len(events) == 1) != wakes || upTo != 1 {
		t.Errorf("%d events up to %d, %v", len(events), upTo, err)
	}
}

func TestSubscription_ByIndexSeesWhatLeaves(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	s := f.subscribe(Interest{Match: MatchValue{byValue(), "1"}}, 0)
	f.write(pod("a", "x"), "1")
	f.next(s, 1)
	f.write(pod("a", "x"), "2")
	if ev := f.next(s, 1)[0]; string(ev.Old.Value()) != "1" || string(ev.New.Value()) != "2" {
		t.Errorf("%s became %s", ev.Old.Value(), ev.New.Value())
	}
	f.write(pod("a", "x"), "3")
	if events, upTo, err := s.Poll(t.Context()); err != nil || len(events) != 0 || upTo != 3 {
		t.Errorf("%d events up to %d, %v", len(events), upTo, err)
	}
}

// A slow subscriber reads changes that have left the ring from the store, page by page.
func TestSubscription_SlowReadsHistory(t *testing.T) {
	t.Parallel()
	const n = 3*pageChanges + 7
	f := start(t, Options{RingEvents: 8})
	s := f.subscribe(Interest{Namespace: "a"}, 0)
	for i := range n {
		f.write(pod("a", fmt.Sprint(i%50)), fmt.Sprint(i))
		f.write(pod("b", fmt.Sprint(i%50)), fmt.Sprint(i))
	}
	for i, ev := range f.next(s, n) {
		if string(ev.New.Value()) != fmt.Sprint(i) || ev.New.Namespace != "a" || (ev.Old == nil) != (i < 50) {
			t.Fatalf("event %d is %s/%s=%s", i, ev.New.Namespace, ev.New.Name, ev.New.Value())
		}
	}
	reads := f.source.reads.Load()
	f.write(pod("a", "new"), "x")
	f.next(s, 1)
	if f.source.reads.Load() != reads {
		t.Error("a subscriber that has caught up read history")
	}
}

func TestRing_IsBoundedByBytes(t *testing.T) {
	t.Parallel()
	f := start(t, Options{RingEvents: 1000, RingBytes: 100})
	f.snapshot()
	for i := range 50 {
		f.write(pod("a", "x"), fmt.Sprintf("%010d", i))
	}
	h := f.caches[pods]
	if h.ring.bytes > 100 || h.ring.size > 11 {
		t.Errorf("%d events with %d bytes are kept", h.ring.size, h.ring.bytes)
	}
	f.next(f.subscribe(Interest{}, 0), 50)
}

func TestSubscription_CompactedEnds(t *testing.T) {
	t.Parallel()
	f := start(t, Options{RingEvents: 2})
	f.snapshot()
	for i := range 10 {
		f.write(pod("a", fmt.Sprint(i)), "x")
	}
	storetest.Compact(t, f.source, 5)
	if _, _, err := f.subscribe(Interest{}, 4).Next(t.Context()); !errors.Is(err, ErrCompacted) {
		t.Errorf("from 4: %v", err)
	}
	f.next(f.subscribe(Interest{}, 5), 5)
}

func TestSubscription_FutureRevisionWaits(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	s := f.subscribe(Interest{}, 2)
	for i := range 3 {
		f.write(pod("a", fmt.Sprint(i)), "x")
	}
	if ev := f.next(s, 1)[0]; ev.Revision != 3 {
		t.Errorf("first event is of %d, want 3", ev.Revision)
	}
}

func TestFeed_CloseEndsSubscriptions(t *testing.T) {
	t.Parallel()
	s := &source{Model: nil}
	f := New(sharedSource{s}, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Model = startShared(t, Options{}).source.Model
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Latest(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Latest: %v", err)
	}
	if _, err := f.Snapshot(t.Context(), pods); !errors.Is(err, ErrClosed) {
		t.Errorf("Snapshot: %v", err)
	}
}

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
func readWithBreaks(
	ctx context.Context, subscribe func(int64) (*Subscription, error), after, last int64, revisions *[]int64,
) error {
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

// Readers and writers run concurrently: every subscriber ends with the state of the store.
func TestSubscription_ConvergesToTheStore(t *testing.T) {
	t.Parallel()
	const writers, writes, subscribers = 3, 400, 12
	f := startShared(t, Options{Interval: 5 * time.Millisecond, RingEvents: 16})
	var mu sync.Mutex // changes of the model are read in order
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range writes {
				mu.Lock()
				key := pod(fmt.Sprint(r.IntN(3)), fmt.Sprint(r.IntN(20)))
				if w == 0 { // another process
					f.put(key, fmt.Sprint(r.IntN(5)))
				} else {
					f.write(key, fmt.Sprint(r.IntN(5)))
				}
				mu.Unlock()
			}
		})
	}
	for i := range subscribers {
		all.Go(func() { follow(f, i, writers*writes) })
	}
	all.Wait()
}

// follow maintains a copy of one namespace (or of all) from a subscription and compares it
// with the store at the end.
func follow(f *fixture, i, end int) {
	want := Interest{Resource: pods}
	if i%2 == 1 {
		want.Namespace = fmt.Sprint(i % 3)
	}
	snapshot := f.snapshot()
	got := map[sqlstore.Key]string{}
	for e := range snapshot.All(want.Namespace, nil) {
		got[e.Key] = string(e.Value())
	}
	sub, err := f.Subscribe(context.Background(), want, snapshot.Revision())
	if err != nil {
		f.t.Error(err)
		return
	}
	defer sub.Close()
	last := snapshot.Revision()
	for upTo := last; upTo < int64(end); {
		var events []Event
		if events, upTo, err = sub.Poll(context.Background()); err != nil {
			f.t.Error(err)
			return
		}
		for _, ev := range events {
			if ev.Revision <= last {
				f.t.Errorf("%d came after %d", ev.Revision, last)
			}
			last = ev.Revision
			if old := got[ev.Key()]; ev.Old != nil && string(ev.Old.Value()) != old {
				f.t.Errorf("%d replaced %q, but %q was there", ev.Revision, ev.Old.Value(), old)
			}
			got[ev.Key()] = string(ev.New.Value())
		}
		if len(events) == 0 && upTo < int64(end) {
			select {
			case <-sub.Ready():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	n := 0
	for e := range f.snapshot().All(want.Namespace, nil) {
		n++
		if got[e.Key] != string(e.Value()) {
			f.t.Errorf("%v is %q, want %q", e.Key, got[e.Key], e.Value())
		}
	}
	if n != len(got) {
		f.t.Errorf("%d records, want %d", len(got), n)
	}
}

// TestWake_EventsOfThePauseShareOne: the first event wakes a watcher at once; those that come
// during the pause after it wake the watcher together when the pause ends.
func TestWake_EventsOfThePauseShareOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, Options{})
		s := f.subscribe(Interest{}, 0)
		// read returns how many events there are, and has the watcher wait for the next ones.
		read := func() (n int) {
			for {
				events, _, err := s.Poll(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if len(events) == 0 {
					return n
				}
				n += len(events)
			}
		}
		isWoken := func() bool {
			synctest.Wait()
			select {
			case <-s.Ready():
				return true
			default:
				return false
			}
		}
		read()
		f.write(pod("a", "x"), "1")
		if !isWoken() || read() != 1 {
			t.Error("the first event did not wake the watcher")
		}
		f.write(pod("a", "x"), "2")
		f.write(pod("a", "y"), "1")
		if isWoken() {
			t.Error("the watcher was woken during the pause")
		}
		time.Sleep(defaultWakeInterval)
		if !isWoken() {
			t.Error("the watcher was not woken after the pause")
		}
		if n := read(); n != 2 {
			t.Errorf("%d events after the pause, want 2", n)
		}
	})
}

// BenchmarkWake has 200 watchers read each event, at several rates of events, with and
// without the pause of wakeWatchers. It reports the processor time of one delivery, and the
// average time until the last watcher has an event.
func BenchmarkWake(b *testing.B) {
	const watchers = 200
	for _, rate := range []int{1000, 5000} {
		for _, interval := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond} {
			b.Run(fmt.Sprintf("rate=%d/interval=%v", rate, interval), func(b *testing.B) {
				benchmarkWake(b, watchers, rate, interval)
			})
		}
	}
}

func benchmarkWake(b *testing.B, watchers, rate int, interval time.Duration) {
	f := New(&source{Model: storetest.NewModel()}, Options{})
	f.wakeInterval = interval
	ctx, stop := context.WithCancel(b.Context())
	var running, reading sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	w := &fixture{t: b, Feed: f, source: f.tail.source.(*source)}
	published := make([]time.Time, b.N+1)
	var mu sync.Mutex
	var waited time.Duration
	subscriptions := make([]*Subscription, watchers)
	for i := range subscriptions {
		subscriptions[i] = w.subscribe(Interest{}, 0)
	}
	changes := make([]sqlstore.Change, b.N)
	for i := range changes {
		changes[i] = w.put(pod("a", fmt.Sprint(i%100)), "x")
	}
	for _, s := range subscriptions {
		reading.Go(func() {
			for read := 0; read < b.N; {
				events, _, err := s.Next(ctx)
				if err != nil {
					b.Error(err)
					return
				}
				read += len(events)
				now := time.Now()
				mu.Lock()
				for _, ev := range events {
					waited += now.Sub(published[ev.Revision])
				}
				mu.Unlock()
			}
		})
	}
	began := processorTime(b)
	b.ResetTimer()
	for i, c := range changes {
		if due := time.Duration(i) * time.Second / time.Duration(rate); due > b.Elapsed() {
			time.Sleep(due - b.Elapsed()) // the rate is the parameter
		}
		mu.Lock()
		published[c.Revision] = time.Now()
		mu.Unlock()
		f.Publish([]sqlstore.Change{c})
	}
	reading.Wait()
	deliveries := float64(b.N * watchers)
	b.ReportMetric(float64(processorTime(b)-began)/deliveries, "cpu-ns/delivery")
	b.ReportMetric(float64(waited.Microseconds())/deliveries, "µs/delay")
	stop()
	running.Wait()
}

// processorTime is the processor time of this process, of user and system.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
