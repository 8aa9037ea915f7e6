package watch

import (
	"testing"
	"testing/synctest"
	"time"
)

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
