package watch

import (
	"errors"
	"testing"
	"testing/synctest"
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
