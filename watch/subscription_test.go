package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

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
		{"name", Interest{Namespace: "a", Name: "x"}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("a", "y"): false, pod("b", "x"): false}},
		{"name anywhere", Interest{Name: "x"}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("a", "y"): false, pod("", "x"): true}},
		{"index", Interest{Match: MatchValue{byValue(), "1"}}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): true}},
		{"another value", Interest{Match: MatchValue{byValue(), "2"}}, map[sqlstore.Key]bool{pod("a", "x"): false}},
		{"index in a namespace", Interest{Namespace: "a", Match: MatchValue{byValue(), "1"}}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): false, pod("", "z"): false}},
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
