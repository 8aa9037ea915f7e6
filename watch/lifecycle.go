package watch

import (
	"context"
	"sync"
	"time"
)

// lifecycle starts and stops a feed once, and owns its goroutines.
type lifecycle struct {
	// started is closed when the feed has taken over the store's state for the first time,
	// done when Run is about to return.
	started, done chan struct{}
	// running is the context of Run. Run sets it before it closes started, and nobody
	// writes it afterwards.
	running context.Context
	group   sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

// spawn runs a goroutine that Run joins, with Run's context. It returns false, and runs nothing,
// if the feed is closed.
func (l *lifecycle) spawn(do func(context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.group.Go(func() { do(l.running) })
	return true
}

// stop ends all calls of wait, and joins the goroutines.
func (l *lifecycle) stop() {
	l.mu.Lock()
	l.closed = true
	close(l.done)
	l.mu.Unlock()
	l.group.Wait()
}

// wait waits for a value of c, or for c to be closed. It fails with ErrClosed when the feed
// stops.
func (l *lifecycle) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
	}
	select {
	case <-c:
		return nil
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitStart waits until the feed has taken over the store's state for the first time.
func (l *lifecycle) awaitStart(ctx context.Context) error { return l.wait(ctx, l.started) }

// signal sends to c, whose capacity is 1, unless it is full: a second signal before the first is
// received would change nothing.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for a time. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
