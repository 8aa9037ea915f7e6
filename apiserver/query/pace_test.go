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
		ctx, cancel := context.WithCancel(t.Context())
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
		time.Sleep(time.Hour)
		request(1000)
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		if err := p.Err(); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
