package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"byre/sqlstore"
)

// readIndex is how a linearizable read learns the last revision (the read index of
// Raft, 6.4). There is one for each kind of driver.
//
// Invariant: the state that it returns is never older than what any process was
// told, by a commit or a read, before the call. A read that waits until the feed has
// applied this revision is therefore linearizable.
type readIndex interface {
	state(ctx context.Context) (sqlstore.State, error)
}

// newReadIndex chooses the readIndex for a driver.
func newReadIndex(f *Feed) readIndex {
	if driver, ok := f.source.(sqlstore.ReadIndexer); ok {
		return localReadIndex{driver}
	}
	return &sharedReadIndex{feed: f}
}

// isSoleWriter reports whether no other process writes to the store. Then Publish
// delivers every change.
func (f *Feed) isSoleWriter() bool {
	_, local := f.readIndex.(localReadIndex)
	return local
}

// localReadIndex is for a driver that knows the last revision itself.
type localReadIndex struct{ driver sqlstore.ReadIndexer }

func (r localReadIndex) state(context.Context) (sqlstore.State, error) {
	return r.driver.ReadIndex(), nil
}

// sharedReadIndex asks the database, and shares round trips among callers. A caller that
// comes while a round trip is in flight waits for the next one, because the answer of the
// first may be from before the call.
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

// run makes round trips until nobody waits for one.
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

// State returns the store's state as of now or later. It does not wait until the feed
// has applied it.
func (f *Feed) State(ctx context.Context) (sqlstore.State, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return sqlstore.State{}, err
	}
	return f.readIndex.state(ctx)
}

// Latest returns the last revision as of now or later, once the feed has applied it:
// what is read from the feed afterwards is linearizable. Errors: ErrClosed, the
// context's, what the driver's State gives.
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

// latest asks again when the feed adopts another state meanwhile, and waits for that
// where the database is in an epoch that the feed does not know.
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

// ClockAhead is how far the store's clock was ahead of this process's when its
// state was read last, which is once an Interval at least. It is 0 for a store with
// one writer, whose clock is the process's.
func (f *Feed) ClockAhead() time.Duration { return time.Duration(f.clockAhead.Load()) }
