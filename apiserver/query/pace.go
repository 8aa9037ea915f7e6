package query

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// A query that has computed for restAfter rests for restOf each request that has come meanwhile, at most for
// maxRests times as long as it has computed, and in all for half of its time. Shorter turns would cost more than they
// give: each begins with a wait for a processor. Without rests a query makes the slowest hundredth of GETs 1.7 times
// as slow on two processors, whatever its priority (docs/sql.md; TestSQL_GetsBesideQueries).
const (
	restAfter = 50 * time.Millisecond
	restOf    = 5 * time.Millisecond
	maxRests  = 3
)

// Beside returns a handler that passes all requests to next. Queries make way for them.
func (s *Storage) Beside(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		next.ServeHTTP(w, r)
	})
}

// pace is the context by which SQLite asks, after each 1,000 of its instructions, whether to go on. Its Err rests. One
// goroutine uses it.
type pace struct {
	context.Context
	requests *atomic.Int64
	// seen is what requests was when the query began to compute, at since.
	seen  int64
	since time.Time
	// left is for how long the query may still rest.
	left time.Duration
}

// newPace makes a pace of a query that has time until the deadline of ctx. requests counts those for which it makes way.
func newPace(ctx context.Context, requests *atomic.Int64) *pace {
	p := &pace{Context: ctx, requests: requests, seen: requests.Load(), since: time.Now()}
	if deadline, ok := ctx.Deadline(); ok {
		p.left = time.Until(deadline) / 2
	}
	return p
}

// Err implements context.Context.
func (p *pace) Err() error {
	if computed := time.Since(p.since); computed >= restAfter {
		rest := min(time.Duration(p.requests.Load()-p.seen)*restOf, maxRests*computed, p.left)
		p.left -= rest
		select {
		case <-time.After(rest):
		case <-p.Done():
		}
		p.seen, p.since = p.requests.Load(), time.Now()
	}
	return p.Context.Err()
}
