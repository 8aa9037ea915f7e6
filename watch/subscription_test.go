package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"byre/sqlstore"
)

// A subscriber is woken by what it wants and by nothing else.
func TestWaking(t *testing.T) {
	one := "1"
	for _, test := range []struct {
		name  string
		want  Interest
		wakes map[sqlstore.Key]bool // by a write of value 1
	}{
		{"all", Interest{}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): true, pod("", "z"): true}},
		{"namespace", Interest{Namespace: "a"}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "x"): false}},
		{"name", Interest{Namespace: "a", Name: "x"}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("a", "y"): false, pod("b", "x"): false}},
		{"name anywhere", Interest{Name: "x"}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("a", "y"): false, pod("", "x"): true}},
		{"index", Interest{Narrow: &Narrowing{byValue(), one}}, map[sqlstore.Key]bool{pod("a", "x"): true, pod("b", "y"): true}},
	} {
		for key, wakes := range test.wakes {
			t.Run(fmt.Sprintf("%s/%s/%s", test.name, key.Namespace, key.Name), func(t *testing.T) {
				f := start(t, Options{SoleWriter: true})
				s := f.subscribe(test.want, 0)
				witness := f.subscribe(Interest{}, 0)
				for _, sub := range []*Subscription{s, witness} {
					if events, _, err := sub.Poll(t.Context()); err != nil || len(events) > 0 {
						t.Fatalf("%d events, %v", len(events), err)
					}
				}
				f.write(key, one)
				f.next(witness, 1) // by now the goroutine that wakes watchers has been round
				select {
				case <-s.Ready():
					if !wakes {
						t.Error("was woken")
					}
				case <-time.After(wait(wakes)):
					if wakes {
						t.Error("was not woken")
					}
				}
				events, upTo, err := s.Poll(t.Context())
				if err != nil || (len(events) == 1) != wakes || upTo != 1 {
					t.Errorf("%d events up to %d, %v", len(events), upTo, err)
				}
			})
		}
	}
}

func wait(wakes bool) time.Duration {
	if wakes {
		return 10 * time.Second
	}
	return 20 * time.Millisecond
}

func TestIndexSubscriberSeesWhatLeaves(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	one := "1"
	s := f.subscribe(Interest{Narrow: &Narrowing{byValue(), one}}, 0)
	f.write(pod("a", "x"), "1")
	f.next(s, 1)
	f.write(pod("a", "x"), "2")
	if ev := f.next(s, 1)[0]; string(ev.Old.Value) != "1" || string(ev.New.Value) != "2" {
		t.Errorf("%s became %s", ev.Old.Value, ev.New.Value)
	}
	f.write(pod("a", "x"), "3")
	if events, upTo, err := s.Poll(t.Context()); err != nil || len(events) != 0 || upTo != 3 {
		t.Errorf("%d events up to %d, %v", len(events), upTo, err)
	}
}

// What has left the ring is read from the store, page by page.
func TestSlowSubscriberReadsHistory(t *testing.T) {
	const n = 3*pageChanges + 7
	f := start(t, Options{SoleWriter: true, RingEvents: 8})
	s := f.subscribe(Interest{Namespace: "a"}, 0)
	for i := range n {
		f.write(pod("a", fmt.Sprint(i%50)), fmt.Sprint(i))
		f.write(pod("b", fmt.Sprint(i%50)), fmt.Sprint(i))
	}
	for i, ev := range f.next(s, n) {
		if string(ev.New.Value) != fmt.Sprint(i) || ev.New.Namespace != "a" || (ev.Old == nil) != (i < 50) {
			t.Fatalf("event %d is %s/%s=%s", i, ev.New.Namespace, ev.New.Name, ev.New.Value)
		}
	}
	reads := f.source.reads.Load()
	f.write(pod("a", "new"), "x")
	f.next(s, 1)
	if f.source.reads.Load() != reads {
		t.Error("a subscriber that has caught up read history")
	}
}

func TestRingIsBoundedByBytes(t *testing.T) {
	f := start(t, Options{SoleWriter: true, RingEvents: 1000, RingBytes: 100})
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

func TestCompactedSubscriber(t *testing.T) {
	f := start(t, Options{SoleWriter: true, RingEvents: 2})
	f.snapshot()
	for i := range 10 {
		f.write(pod("a", fmt.Sprint(i)), "x")
	}
	if _, err := f.source.Compact(t.Context(), 5, 100); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.subscribe(Interest{}, 4).Next(t.Context()); !errors.Is(err, ErrCompacted) {
		t.Errorf("from 4: %v", err)
	}
	f.next(f.subscribe(Interest{}, 5), 5)
}

func TestFutureSubscriber(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	s := f.subscribe(Interest{}, 2)
	for i := range 3 {
		f.write(pod("a", fmt.Sprint(i)), "x")
	}
	if ev := f.next(s, 1)[0]; ev.Revision != 3 {
		t.Errorf("first event is of %d, want 3", ev.Revision)
	}
}

func TestClosedFeed(t *testing.T) {
	s := &source{Model: nil}
	f := New(s, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Model = start(t, Options{}).source.Model
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
