package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"byre/sqlstore"
)

// readIndex tells linearizable reads the last revision (the read index of Raft, 6.4). It has one
// implementation for each kind of driver.
//
// Invariant: the state that it returns is never older than the result of any commit or read, of
// any process, that returned before the call. The drivers keep it (sqlstore.Driver.State), and
// sharedReadIndex keeps it by never sharing a round trip that began before the call. So a read
// that waits until the feed has applied that revision is linearizable.
type readIndex interface {
	state(ctx context.Context) (sqlstore.State, error)
}

// newReadIndex chooses the readIndex for a driver.
func newReadIndex(f *Feed) readIndex {
	if driver, ok := f.source.(sqlstore.Exclusive); ok {
		return localReadIndex{driver}
	}
	return &sharedReadIndex{feed: f}
}

// isSoleWriter reports whether only this process writes to the store. Then the feed gets every
// change by Publish.
func (f *Feed) isSoleWriter() bool {
	_, local := f.readIndex.(localReadIndex)
	return local
}

// localReadIndex is for a driver that knows the last revision without a round trip.
type localReadIndex struct{ driver sqlstore.Exclusive }

func (r localReadIndex) state(context.Context) (sqlstore.State, error) {
	return r.driver.ReadIndex(), nil
}

// sharedReadIndex asks the database, and shares round trips among callers. A call that is made
// while a round trip is in flight waits for the next one, because the database may have answered
// the first one before the call.
type sharedReadIndex struct {
	feed *Feed

	mu      sync.Mutex
	running bool
	next    *roundTrip
}

// roundTrip is one query of the database. state and err are set before done is closed.
type roundTrip struct {
	done  chan struct{}
	state sqlstore.State
	err   error
}

func (r *sharedReadIndex) state(ctx context.Context) (sqlstore.State, error) {
	trip := r.join()
	if trip == nil {
		return sqlstore.State{}, ErrClosed
	}
	if err := r.feed.wait(ctx, trip.done); err != nil {
		return sqlstore.State{}, err
	}
	return trip.state, trip.err
}

// join returns the next round trip, and starts it if none is in flight. It returns nil if
// the feed is closed.
func (r *sharedReadIndex) join() *roundTrip {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &roundTrip{done: make(chan struct{})}
	}
	trip := r.next
	if !r.running {
		r.running = r.feed.spawn(r.run)
		if !r.running {
			return nil
		}
	}
	return trip
}

// run makes round trips until no caller waits for one.
func (r *sharedReadIndex) run() {
	for {
		r.mu.Lock()
		trip := r.next
		r.next = nil
		r.running = trip != nil
		r.mu.Unlock()
		if trip == nil {
			return
		}
		trip.state, trip.err = r.feed.readState(r.feed.running)
		close(trip.done)
	}
}

// State returns a state of the store that is not older than the call. It does not wait until the
// feed has applied that state's revision.
func (f *Feed) State(ctx context.Context) (sqlstore.State, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return sqlstore.State{}, err
	}
	return f.readIndex.state(ctx)
}

// Latest returns a last revision of the store that is not older than the call, once the feed has
// applied it: reads from the feed after that are linearizable. It fails with ErrClosed, with the
// context's error, and with the errors of the driver's State.
func (f *Feed) Latest(ctx context.Context) (int64, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return 0, err
	}
	if f.isSoleWriter() {
		return f.latest(ctx)
	}
	ctx, end := sqlstore.StartSpan(ctx, "Database Revision")
	revision, err := f.latest(ctx)
	end(err)
	return revision, err
}

// latest is Latest without a span. If the database is in another epoch than the feed, it waits
// until the feed has adopted another state. It asks again after each adoption.
func (f *Feed) latest(ctx context.Context) (int64, error) {
	for {
		a := f.adoption()
		state, err := f.readIndex.state(ctx)
		if err != nil {
			return 0, err
		}
		if state.Epoch != a.epoch {
			f.hint(0)
			if err := f.wait(ctx, a.ended); err != nil {
				return 0, err
			}
			continue
		}
		if err := f.awaitApplied(ctx, state.Revision, a); !errors.Is(err, errAdopted) {
			return state.Revision, err
		}
	}
}

// readState reads the store's state, and records how far its clock is ahead.
func (f *Feed) readState(ctx context.Context) (sqlstore.State, error) {
	state, err := f.source.State(ctx)
	if err == nil && !f.isSoleWriter() && !state.Time.IsZero() {
		f.clockAhead.Store(int64(time.Until(state.Time)))
	}
	return state, err
}

// ClockAhead returns how far the store's clock was ahead of this process's clock when the feed
// last read the store's state, which is at least once an Interval. It is 0 for a store that only
// this process writes to, because that store uses this process's clock.
func (f *Feed) ClockAhead() time.Duration { return time.Duration(f.clockAhead.Load()) }
