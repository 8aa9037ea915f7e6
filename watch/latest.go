package watch

import (
	"context"
	"sync"
	"time"

	"byre/sqlstore"
)

// readIndex shares round trips for the store's revision: who comes while one
// is under way waits for the next, because the one under way may have been
// answered already, from before the caller's time.
type readIndex struct {
	mu      sync.Mutex
	running bool
	next    *indexCall
}

type indexCall struct {
	done  chan struct{}
	state sqlstore.State
	err   error
}

// Latest returns the last revision as of now (or a later one), applied: what
// is read from the feed after it is linearizable.
func (f *Feed) Latest(ctx context.Context) (int64, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return 0, err
	}
	if f.opts.SoleWriter {
		return f.soleLatest(ctx)
	}
	ctx, end := sqlstore.StartSpan(ctx, "Database Revision")
	state, err := f.followedState(ctx)
	end(err)
	if err != nil {
		return 0, err
	}
	return state.Revision, f.WaitFor(ctx, state.Revision)
}

// followedState is State as of now or later, in the epoch that the feed follows:
// revisions of two epochs can't be compared. Where the epochs differ, it waits for
// the reset that is due, or that has come since it began, and asks again.
func (f *Feed) followedState(ctx context.Context) (sqlstore.State, error) {
	for {
		f.mu.RLock()
		adopted := f.adopted
		f.mu.RUnlock()
		state, err := f.State(ctx)
		if err != nil {
			return state, err
		}
		f.mu.RLock()
		same := f.epoch == state.Epoch
		f.mu.RUnlock()
		if same {
			return state, nil
		}
		f.hint(0)
		if err := f.wait(ctx, adopted); err != nil {
			return state, err
		}
	}
}

// State returns the store's counters as of now. Callers share round trips.
func (f *Feed) State(ctx context.Context) (sqlstore.State, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return sqlstore.State{}, err
	}
	call := f.joinIndex()
	if call == nil {
		return sqlstore.State{}, ErrClosed
	}
	if err := f.wait(ctx, call.done); err != nil {
		return sqlstore.State{}, err
	}
	return call.state, call.err
}

// soleLatest: every acknowledged change was published, and is applied unless
// one before it was published before Run began.
func (f *Feed) soleLatest(ctx context.Context) (int64, error) {
	f.mu.RLock()
	revision, target := f.revision, f.target
	f.mu.RUnlock()
	if target <= revision {
		return revision, nil
	}
	return target, f.WaitFor(ctx, target)
}

// joinIndex returns the next round trip, starting it when none is under way;
// nil when the feed is closed.
func (f *Feed) joinIndex() *indexCall {
	r := &f.latest
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &indexCall{done: make(chan struct{})}
	}
	call := r.next
	if !r.running {
		r.running = f.spawn(f.readIndexes)
		if !r.running {
			return nil
		}
	}
	return call
}

// readIndexes makes round trips until nobody waits for one.
func (f *Feed) readIndexes() {
	r := &f.latest
	for {
		r.mu.Lock()
		call := r.next
		r.next = nil
		r.running = call != nil
		r.mu.Unlock()
		if call == nil {
			return
		}
		call.state, call.err = f.readState(f.running)
		close(call.done)
	}
}

// spawn runs a goroutine that Run joins; false when the feed is closed.
func (f *Feed) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.group.Go(do)
	return true
}

// readState asks the store where it is, and notes how its clock differs.
func (f *Feed) readState(ctx context.Context) (sqlstore.State, error) {
	state, err := f.source.State(ctx)
	if err == nil && !f.opts.SoleWriter && !state.Time.IsZero() {
		f.clockAhead.Store(int64(time.Until(state.Time)))
	}
	return state, err
}

// ClockAhead is how far the store's clock was ahead of this process's when its
// state was read last, which is once an Interval at least. The clock of a store
// that has one writer is the process's.
func (f *Feed) ClockAhead() time.Duration { return time.Duration(f.clockAhead.Load()) }
