package query

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// turns decides which queries run. At most `most` run at a time, and of one user at most half as many, or one. A query
// waits for those of its user first, and then with those of the others for which it came after, so that a user who has
// many waiting holds up others by no more than what may run of them.
type turns struct {
	most int
	// patience is how long a query waits. longest is how long one runs: the only one of a user waits for so long in
	// addition, because its turn is next.
	patience, longest time.Duration
	all               *semaphore.Weighted

	mutex sync.Mutex
	users map[string]*turnUser
}

// turnUser is a user of whom queries, as many as the count, run or wait.
type turnUser struct {
	count int
	own   *semaphore.Weighted
}

func newTurns(most int, patience, longest time.Duration) *turns {
	return &turns{most: most, patience: patience, longest: longest, all: semaphore.NewWeighted(int64(most)),
		users: make(map[string]*turnUser)}
}

// acquire waits until a query of a user may run. The caller calls release.
func (t *turns) acquire(ctx context.Context, name string) (release func(), err error) {
	user, wait := t.enter(name)
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err = user.own.Acquire(waiting, 1); err == nil {
		if err = t.all.Acquire(waiting, 1); err != nil {
			user.own.Release(1)
		}
	}
	switch {
	case err == nil:
		return func() {
			t.all.Release(1)
			user.own.Release(1)
			t.leave(name)
		}, nil
	case ctx.Err() == nil:
		err = apierrors.NewTooManyRequests(
			"all of --sql-concurrency, or half of them by queries of this user, are in use: try again", 1)
	}
	t.leave(name)
	return nil, err
}

// enter counts a query, and returns how long it may wait.
func (t *turns) enter(name string) (*turnUser, time.Duration) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	wait, user := t.patience, t.users[name]
	if user == nil {
		user, wait = &turnUser{own: semaphore.NewWeighted(int64(max(1, t.most/2)))}, t.patience+t.longest
		t.users[name] = user
	}
	user.count++
	return user, wait
}

// leave ends the count of a query.
func (t *turns) leave(name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.users[name].count--; t.users[name].count == 0 {
		delete(t.users, name)
	}
}
