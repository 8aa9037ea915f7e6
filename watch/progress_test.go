package watch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"byre/sqlstore"
)

// AwaitChange waits for a change after a position, and reads nothing for it. It fails when the feed has
// read all state again.
func TestAwaitChange_WaitsForALaterChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startShared(t, Options{Interval: never})
		f.write(pod("a", "1"), "x")
		if err := f.WaitFor(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		at, err := f.Position(t.Context())
		if err != nil || at.Revision != 1 {
			t.Fatalf("position %d, %v", at.Revision, err)
		}
		reads := f.source.reads.Load()
		var awaited error
		awaits := func() <-chan struct{} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				awaited = f.AwaitChange(t.Context(), at)
			}()
			synctest.Wait()
			return done
		}
		done := awaits()
		select {
		case <-done:
			t.Fatalf("no change is waited for: %v", awaited)
		default:
		}
		if after := f.source.reads.Load(); after != reads {
			t.Errorf("%d reads", after-reads)
		}
		f.write(pod("a", "2"), "x")
		if <-done; awaited != nil {
			t.Error(awaited)
		}
		at.Revision = 2
		done = awaits()
		if err := f.reset(t.Context(), resetHole); err != nil {
			t.Fatal(err)
		}
		if <-done; !errors.Is(awaited, ErrCompacted) {
			t.Errorf("after a reset: %v", awaited)
		}
	})
}

// A request for a revision that does not exist hides nothing that the feed learns while it reads for that
// request, from a publication or from a hint.
func TestWaitFor_AFarRevisionHidesNoChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fixture){
		"published": func(f *fixture) { f.write(pod("a", "3"), "mine") },
		"hinted":    func(f *fixture) { f.hint(f.put(pod("a", "3"), "theirs").Revision) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startShared(t, Options{Interval: never})
				f.write(pod("a", "1"), "mine")
				f.snapshot()
				sub := f.subscribe(Interest{}, 1)
				isFirst := true
				f.source.answer(func(s *source) {
					s.changes = func(changes []sqlstore.Change) ([]sqlstore.Change, error) {
						if isFirst && len(changes) == 0 {
							isFirst = false
							f.put(pod("b", "2"), "theirs")
							change(f)
						}
						return changes, nil
					}
				})
				go func() { _ = f.WaitFor(t.Context(), 1<<40) }()
				synctest.Wait()
				events, _, err := sub.Poll(t.Context())
				if err != nil || len(events) != 2 || events[0].Revision != 2 || events[1].Revision != 3 {
					t.Errorf("events %v, %v", events, err)
				}
			})
		})
	}
}

// A request for a revision that does not exist makes the feed read once more than the changes need, also while
// this process publishes others all the time.
func TestWaitFor_AFarRevisionIsLookedForOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startShared(t, Options{Interval: never})
		f.write(pod("a", "1"), "mine")
		f.snapshot()
		reads := 0
		f.source.answer(func(s *source) {
			s.changes = func(changes []sqlstore.Change) ([]sqlstore.Change, error) {
				if reads++; reads < 10 {
					f.write(pod("a", "2"), "mine")
				}
				return changes, nil
			}
		})
		go func() { _ = f.WaitFor(t.Context(), 1<<40) }()
		synctest.Wait()
		f.source.answer(func(*source) {
			if reads != 1 {
				t.Errorf("%d reads", reads)
			}
		})
	})
}

// Calls of Latest share round trips, but none gets the answer of a round trip that began before
// the call.
func TestReadIndex_SharesRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startShared(t, Options{Interval: never})
		f.snapshot()
		f.awaitUsage()
		release := make(chan struct{})
		f.source.answer(func(s *source) {
			s.state = func(state sqlstore.State) sqlstore.State {
				<-release
				return state
			}
		})
		before := f.source.states.Load()
		latest := func() int64 {
			revision, err := f.Latest(context.Background())
			if err != nil {
				t.Error(err)
			}
			return revision
		}
		early := make(chan int64, 1)
		go func() { early <- latest() }()
		synctest.Wait() // its answer was read: revision 0
		f.put(pod("a", "1"), "x")
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if got := latest(); got != 1 {
					t.Errorf("latest is %d after revision 1 was committed", got)
				}
			})
		}
		synctest.Wait() // all of them wait for the second round trip
		close(release)
		if got := <-early; got != 0 {
			t.Errorf("the first answer was %d", got)
		}
		all.Wait()
		if trips := f.source.states.Load() - before; trips != 2 {
			t.Errorf("%d round trips for 101 calls, want 2", trips)
		}
	})
}
