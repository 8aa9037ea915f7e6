package query

import (
	"context"
	"slices"
	"sync"
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
		err = apierrors.NewTooManyRequests(
			"all of --sql-concurrency, or half of them by queries of this user, are in use: try again", 1)
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
