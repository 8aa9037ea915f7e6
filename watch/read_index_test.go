package watch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"byre/sqlstore"
)

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
