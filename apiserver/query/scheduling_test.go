package query

import (
	"context"
	"net/http"
	"net/http/httptest"
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

// TestTurns_GoAroundAmongUsers: where one query runs at a time, a user's only query waits for the one that runs, however
// long that takes, and however many another user has waiting. Of the others each is refused after its patience.
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

// A query rests after it has computed while requests came, and not otherwise; its end ends the rest.
func TestPace_RestsWhenRequestsHaveCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Concurrency: 1})
		handler := s.Beside(http.NotFoundHandler())
		request := func(n int) {
			for range n {
				handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		p := newPace(ctx, &s.requests)
		for _, c := range []struct {
			computes time.Duration
			requests int
			want     time.Duration
		}{
			{restAfter / 2, 100, 0},
			{restAfter / 2, 0, maxRests * restAfter},
			{restAfter, 0, 0},
			{restAfter, 2, 2 * restOf},
			{2 * restAfter, 1000, 2 * maxRests * restAfter},
			{restAfter, 0, 0},
		} {
			time.Sleep(c.computes)
			request(c.requests)
			began := time.Now()
			if err := p.Err(); err != nil || time.Since(began) != c.want {
				t.Errorf("%v: %v after %v", c, err, time.Since(began))
			}
		}
		time.Sleep(10 * restAfter)
		request(1000)
		began := time.Now()
		go func() {
			time.Sleep(time.Second / 2)
			cancel()
		}()
		if err := p.Err(); err == nil || time.Since(began) != time.Second/2 {
			t.Errorf("after its end: %v after %v", err, time.Since(began))
		}
	})
}

// A query rests for half of its time at most.
func TestPace_LeavesHalfOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s := New(Config{Concurrency: 1})
		p := newPace(ctx, &s.requests)
		computed := time.Duration(0)
		for ; p.Err() == nil; computed += restAfter {
			s.requests.Add(1000)
			time.Sleep(restAfter)
		}
		if computed < 5*time.Second || computed > 6*time.Second {
			t.Errorf("of ten seconds it computed for %v", computed)
		}
	})
}
