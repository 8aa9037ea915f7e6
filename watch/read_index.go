package watch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"byre/sqlstore"
)

// readIndex tells linearizable reads the last revision (the read index of Raft, 6.4).
//
// Invariant: the result of State is never older than the result of any commit or read, of
// any process, that returned before the call. The drivers keep it (sqlstore.Driver.State), and
// State keeps it by never sharing a round trip that began before the call. So a read that waits
// until the feed has applied that revision is linearizable.
type readIndex struct {
	source    Source
	lifecycle *lifecycle
	progress  *progress
	// clockAhead is the value of ClockAhead, in nanoseconds.
	clockAhead atomic.Int64

	// mu guards what follows. next is the round trip that callers wait for and that has not
	// begun; one is in flight while isRunning is true.
	mu        sync.Mutex
	isRunning bool
	next      *roundTrip
}

// roundTrip is one query of the database. state and err are set before done is closed.
type roundTrip struct {
	done  chan struct{}
	state sqlstore.State
	err   error
}

// Latest returns a last revision of the store that is not older than the call, once the feed has
// applied it: reads from the feed after that are linearizable. It fails with ErrClosed, with the
// context's error, and with the errors of the driver's State.
func (r *readIndex) Latest(ctx context.Context) (int64, error) {
	if err := r.lifecycle.awaitStart(ctx); err != nil {
		return 0, err
	}
	if r.progress.isSoleWriter {
		return r.latest(ctx)
	}
	ctx, end := sqlstore.StartSpan(ctx, "Database Revision")
	revision, err := r.latest(ctx)
	end(err)
	return revision, err
}

// latest is Latest without a span. If the database is in another epoch than the feed, it waits
// until the feed has taken over another state. It asks again after each restart.
func (r *readIndex) latest(ctx context.Context) (int64, error) {
	for {
		a := r.progress.generation.Load()
		state, err := r.State(ctx)
		if err != nil {
			return 0, err
		}
		if state.Epoch != a.epoch {
			r.progress.request(0)
			if err := r.lifecycle.wait(ctx, a.ended); err != nil {
				return 0, err
			}
			continue
		}
		if err := r.progress.awaitApplied(ctx, state.Revision, a); !errors.Is(err, errRestarted) {
			return state.Revision, err
		}
	}
}

// State returns a state of the store that is not older than the call. It does not wait until the
// feed has applied that state's revision. Callers share round trips. A call that is made while a
// round trip is in flight waits for the next one, because the database may have answered the first
// one before the call.
func (r *readIndex) State(ctx context.Context) (sqlstore.State, error) {
	if err := r.lifecycle.awaitStart(ctx); err != nil {
		return sqlstore.State{}, err
	}
	if r.progress.isSoleWriter {
		return r.source.State(ctx) // without a round trip: see sqlstore.Exclusive
	}
	trip := r.join()
	if trip == nil {
		return sqlstore.State{}, ErrClosed
	}
	if err := r.lifecycle.wait(ctx, trip.done); err != nil {
		return sqlstore.State{}, err
	}
	return trip.state, trip.err
}

// join returns the next round trip, and starts it if none is in flight. It returns nil if
// the feed is closed.
func (r *readIndex) join() *roundTrip {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &roundTrip{done: make(chan struct{})}
	}
	trip := r.next
	if !r.isRunning {
		r.isRunning = r.lifecycle.spawn(r.run)
		if !r.isRunning {
			return nil
		}
	}
	return trip
}

// run makes round trips until no caller waits for one.
func (r *readIndex) run(ctx context.Context) {
	for {
		r.mu.Lock()
		trip := r.next
		r.next = nil
		r.isRunning = trip != nil
		r.mu.Unlock()
		if trip == nil {
			return
		}
		trip.state, trip.err = r.ask(ctx)
		close(trip.done)
	}
}

// ask reads the store's state, and records how far its clock is ahead.
func (r *readIndex) ask(ctx context.Context) (sqlstore.State, error) {
	state, err := r.source.State(ctx)
	if err == nil && !r.progress.isSoleWriter && !state.Time.IsZero() {
		r.clockAhead.Store(int64(time.Until(state.Time)))
	}
	return state, err
}

// ClockAhead returns how far the store's clock was ahead of this process's clock when the feed
// last read the store's state, which is at least once an Interval. It is 0 for a store that only
// this process writes to, because that store uses this process's clock.
func (r *readIndex) ClockAhead() time.Duration { return time.Duration(r.clockAhead.Load()) }
