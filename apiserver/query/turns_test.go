package query

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurns_OneUserLeavesHalfToOthers: whoever asks all the time takes half of the queries that run at a time; another
// user's begins at once.
func TestTurns_OneUserLeavesHalfToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(4, patience, 10*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan func(), 60)
		var group sync.WaitGroup
		for range 60 {
			group.Go(func() {
				if release, err := turns.acquire(ctx, "greedy"); err == nil {
					begun <- release
				}
			})
		}
		synctest.Wait()
		if len(begun) != 2 {
			t.Errorf("%d queries of one user run", len(begun))
		}
		before := time.Now()
		release, err := turns.acquire(ctx, "admin")
		if err != nil || time.Since(before) > 0 {
			t.Fatal(err, time.Since(before))
		}
		release()
		cancel()
		group.Wait()
		for len(begun) > 0 {
			(<-begun)()
		}
		if len(turns.users)+len(turns.waiting) > 0 {
			t.Error("something is left")
		}
	})
}

// TestTurns_GoAroundAmongUsers: where one query runs at a time, a user's only query waits for the one that runs,
// however long that takes, and however many another user has waiting. Of the others each is refused after its patience.
func TestTurns_GoAroundAmongUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, patience, 10*time.Second)
		var mutex sync.Mutex
		var order []string
		refused := 0
		var group sync.WaitGroup
		ask := func(user string) {
			group.Go(func() {
				release, err := turns.acquire(t.Context(), user)
				mutex.Lock()
				if err != nil {
					refused++
				} else {
					order = append(order, user)
				}
				mutex.Unlock()
				if err == nil {
					time.Sleep(6 * time.Second)
					release()
				}
			})
			synctest.Wait()
		}
		for range 3 {
			ask("greedy")
		}
		ask("admin")
		ask("reader")
		group.Wait()
		if want := []string{"greedy", "admin", "reader"}; !slices.Equal(order, want) || refused != 2 {
			t.Errorf("%q, and %d are refused", order, refused)
		}
	})
}
