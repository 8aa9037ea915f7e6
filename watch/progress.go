package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"byre/sqlstore"
)

// progress is how far the feed has applied the store's changes, and who waits for more.
type progress struct {
	lifecycle *lifecycle
	// isSoleWriter is true if only this process writes to the store. Then the feed gets every
	// change by Publish.
	isSoleWriter bool
	// request is tail.hint: it has the tail read the changes up to a revision.
	request func(revision int64)

	// revision is the last revision applied, generation the current generation of the store's state.
	// They are read without mu, and written with it; at a restart, generation is written first.
	revision   atomic.Int64
	generation atomic.Pointer[generation]
	// compacted is the store's compacted revision, as the feed has last read it.
	compacted atomic.Int64

	mu sync.Mutex
	// waits has the calls of await that wait. Invariant: each waits for a revision of the
	// current generation that is greater than revision; advance and restart end the others. mu
	// guards it.
	waits []*revisionWait
}

// generation is the time for which the feed follows one state of the store. One begins at the feed's start, and
// after each loss of the store's history. Revisions of two epochs can't be compared.
type generation struct {
	epoch string
	// ended is closed when the feed takes over another state.
	ended chan struct{}
}

// revisionWait is one call that waits until a revision is applied.
type revisionWait struct {
	revision int64
	// applied is closed when the revision is applied.
	applied chan struct{}
}

// errRestarted means that the feed has taken over another state of the store, in which the
// awaited revision may never come.
var errRestarted = errors.New("the feed has started again")

// Revision returns the last revision that the feed has applied; 0 before Run has read the
// store's state.
func (p *progress) Revision() int64 { return p.revision.Load() }

// Compacted returns the store's compacted revision as the feed has last read it. The store may
// be ahead of it.
func (p *progress) Compacted() int64 { return p.compacted.Load() }

// EpochEnded returns a channel that is closed when the feed takes over another state of the store, because commits were
// lost: what was made of changes before may never have been.
func (p *progress) EpochEnded() <-chan struct{} { return p.generation.Load().ended }

// WaitFor waits until the feed has applied a revision. It fails with ErrCompacted if the store
// begins a new epoch meanwhile, because the revision belongs to the old one; with ErrClosed; and
// with the context's error.
func (p *progress) WaitFor(ctx context.Context, revision int64) error {
	if err := p.lifecycle.awaitStart(ctx); err != nil {
		return err
	}
	for epoch := p.generation.Load().epoch; ; {
		a := p.generation.Load()
		if a.epoch != epoch {
			return ErrCompacted
		}
		if err := p.awaitApplied(ctx, revision, a); !errors.Is(err, errRestarted) {
			return err
		}
	}
}

// Position is a place in the changes of all resources.
type Position struct {
	// Revision is the last one before the position.
	Revision   int64
	generation *generation
}

// Position returns the position after the last change that the feed has applied. It fails with
// ErrClosed, and with the context's error.
func (p *progress) Position(ctx context.Context) (Position, error) {
	if err := p.lifecycle.awaitStart(ctx); err != nil {
		return Position{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return Position{p.revision.Load(), p.generation.Load()}, nil
}

// AwaitChange waits until the feed has applied a change after a position. It fails with
// ErrCompacted where a Subscription would: if the feed has read all state again since the position
// was made. It fails with ErrClosed, and with the context's error.
func (p *progress) AwaitChange(ctx context.Context, after Position) error {
	err := p.await(ctx, after.Revision+1, after.generation)
	if errors.Is(err, errRestarted) {
		return ErrCompacted
	}
	return err
}

// awaitApplied waits until the feed has applied a revision, which the caller has learned while a
// was the current generation. If other processes write to the store, the change may be theirs, and
// awaitApplied has the tail read it at once. It fails with errRestarted when the feed takes over another
// state, which may be at a lower revision and never reach the awaited one.
func (p *progress) awaitApplied(ctx context.Context, revision int64, a *generation) error {
	if !p.isSoleWriter && revision > p.Revision() {
		p.request(revision)
	}
	return p.await(ctx, revision, a)
}

// await is awaitApplied for a revision that may not exist yet: the tail does not look for it.
func (p *progress) await(ctx context.Context, revision int64, a *generation) error {
	applied := p.Revision() >= revision // read before the generation, so that it is not a later one's
	switch {
	case p.generation.Load() != a:
		return errRestarted
	case applied:
		return nil
	}
	w := p.addWait(revision, a)
	var err error
	select {
	case <-w.applied:
		return nil
	case <-a.ended:
		err = errRestarted
	case <-p.lifecycle.done:
		err = ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits = slices.DeleteFunc(p.waits, func(other *revisionWait) bool { return other == w })
	return err
}

// addWait adds a wait. If the revision is applied, or the generation has ended, the wait has ended.
func (p *progress) addWait(revision int64, a *generation) *revisionWait {
	w := &revisionWait{revision, make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.generation.Load() != a:
	case p.Revision() >= revision:
		close(w.applied)
	default:
		p.waits = append(p.waits, w)
	}
	return w
}

// advance records that a revision and all before it are applied.
func (p *progress) advance(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision.Store(revision)
	p.waits = slices.DeleteFunc(p.waits, func(w *revisionWait) bool {
		if w.revision > revision {
			return false
		}
		close(w.applied)
		return true
	})
}

// restart makes a state of the store the feed's, whatever was applied before. Waits for revisions of
// before end.
func (p *progress) restart(state sqlstore.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compacted.Store(state.Compacted)
	before := p.generation.Swap(&generation{epoch: state.Epoch, ended: make(chan struct{})})
	p.revision.Store(state.Revision)
	close(before.ended)
	p.waits = nil
}

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
