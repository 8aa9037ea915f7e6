package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

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
