package query

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// turns decides which queries run. At most `most` run at a time, and of one user at most half as many, or one. The next
// one is of the user who has the fewest running, and of these whose last query began first; of one user, that which
// came first.
type turns struct {
	most int
	// patience is how long a query waits. longest is how long one runs: the only one of a user waits for so long in
	// addition, because its turn is next.
	patience, longest time.Duration

	mutex   sync.Mutex
	begun   uint64 // how many have begun
	users   map[string]*turnUser
	waiting []*turn // in the order in which they came
}

// turnUser is a user of whom a query runs or waits.
type turnUser struct {
	running, waiting int
	// last is what begun was when the last query of the user began.
	last uint64
}

type turn struct {
	user  string
	begin chan struct{} // closed when the query may run
}

func newTurns(most int, patience, longest time.Duration) *turns {
	return &turns{most: most, patience: patience, longest: longest, users: make(map[string]*turnUser)}
}

// acquire waits until a query of a user may run. The caller calls release.
func (t *turns) acquire(ctx context.Context, user string) (release func(), err error) {
	own := &turn{user, make(chan struct{})}
	wait := t.enter(own)
	select {
	case <-own.begin:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(wait):
		err = apierrors.NewTooManyRequests("all of --sql-concurrency, or half of them by queries of this user, are in use: try again", 1)
	}
	if err != nil && t.leave(own) {
		return nil, err
	}
	return func() { t.release(user) }, nil
}

// enter lets a query wait, and returns for how long.
func (t *turns) enter(own *turn) time.Duration {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	wait, user := t.patience, t.users[own.user]
	if user == nil {
		user, wait = &turnUser{}, t.patience+t.longest
		t.users[own.user] = user
	}
	user.waiting++
	t.waiting = append(t.waiting, own)
	t.next()
	return wait
}

// leave ends the wait of a query. It returns false if the query may run.
func (t *turns) leave(own *turn) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	i := slices.Index(t.waiting, own)
	if i < 0 {
		return false
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	t.users[own.user].waiting--
	t.forget(own.user)
	return true
}

// release ends the turn of a query of a user.
func (t *turns) release(user string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.users[user].running--
	t.forget(user)
	t.next()
}

func (t *turns) forget(user string) {
	if u := t.users[user]; u.running+u.waiting == 0 {
		delete(t.users, user)
	}
}

// next begins the queries whose turn it is. The caller holds the mutex.
func (t *turns) next() {
	for {
		running, best := 0, -1
		for _, u := range t.users {
			running += u.running
		}
		for i, w := range t.waiting {
			u := t.users[w.user]
			if u.running >= max(1, t.most/2) {
				continue
			}
			if best < 0 || u.isBefore(t.users[t.waiting[best].user]) {
				best = i
			}
		}
		if running >= t.most || best < 0 {
			return
		}
		w := t.waiting[best]
		t.waiting = slices.Delete(t.waiting, best, best+1)
		u := t.users[w.user]
		t.begun++
		u.running, u.waiting, u.last = u.running+1, u.waiting-1, t.begun
		close(w.begin)
	}
}

func (u *turnUser) isBefore(other *turnUser) bool {
	return u.running < other.running || u.running == other.running && u.last < other.last
}

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
