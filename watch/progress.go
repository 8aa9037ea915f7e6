package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

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

	// revision is the last revision applied, adopted the last adoption of the store's state.
	// They are read without mu, and written with it; in an adoption adopted is written first.
	revision atomic.Int64
	adopted  atomic.Pointer[adoption]
	// compacted is the store's compacted revision, as the feed has last read it.
	compacted atomic.Int64

	mu sync.Mutex
	// waits has the calls of await that wait. Invariant: each waits for a revision of the
	// last adoption that is greater than revision; advance and adopt end the others. mu
	// guards it.
	waits []*revisionWait
}

// adoption is one time that the feed has taken over the store's state: at its start, and
// after each loss of the store's history. Revisions of two epochs can't be compared.
type adoption struct {
	epoch string
	// ended is closed when the feed adopts another state.
	ended chan struct{}
}

// revisionWait is one call that waits until a revision is applied.
type revisionWait struct {
	revision int64
	// applied is closed when the revision is applied.
	applied chan struct{}
}

// errAdopted means that the feed has adopted another state of the store, in which the
// awaited revision may never come.
var errAdopted = errors.New("the feed has started again")

// Revision returns the last revision that the feed has applied; 0 before Run has read the
// store's state.
func (p *progress) Revision() int64 { return p.revision.Load() }

// Compacted returns the store's compacted revision as the feed has last read it. The store may
// be ahead of it.
func (p *progress) Compacted() int64 { return p.compacted.Load() }

// WaitFor waits until the feed has applied a revision. It fails with ErrCompacted if the store
// begins a new epoch meanwhile, because the revision belongs to the old one; with ErrClosed; and
// with the context's error.
func (p *progress) WaitFor(ctx context.Context, revision int64) error {
	if err := p.lifecycle.awaitStart(ctx); err != nil {
		return err
	}
	for epoch := p.adopted.Load().epoch; ; {
		a := p.adopted.Load()
		if a.epoch != epoch {
			return ErrCompacted
		}
		if err := p.awaitApplied(ctx, revision, a); !errors.Is(err, errAdopted) {
			return err
		}
	}
}

// Position is a place in the changes of all resources.
type Position struct {
	// Revision is the last one before the position.
	Revision int64
	adopted  *adoption
}

// Position returns the position after the last change that the feed has applied. It fails with
// ErrClosed, and with the context's error.
func (p *progress) Position(ctx context.Context) (Position, error) {
	if err := p.lifecycle.awaitStart(ctx); err != nil {
		return Position{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return Position{p.revision.Load(), p.adopted.Load()}, nil
}

// AwaitChange waits until the feed has applied a change after a position. It fails with
// ErrCompacted where a Subscription would: if the feed has read all state again since the position
// was made. It fails with ErrClosed, and with the context's error.
func (p *progress) AwaitChange(ctx context.Context, after Position) error {
	err := p.await(ctx, after.Revision+1, after.adopted)
	if errors.Is(err, errAdopted) {
		return ErrCompacted
	}
	return err
}

// awaitApplied waits until the feed has applied a revision, which the caller has learned while a
// was the last adoption. If other processes write to the store, the change may be theirs, and
// awaitApplied has the tail read it at once. It fails with errAdopted when the feed adopts another
// state, which may be at a lower revision and never reach the awaited one.
func (p *progress) awaitApplied(ctx context.Context, revision int64, a *adoption) error {
	if !p.isSoleWriter && revision > p.Revision() {
		p.request(revision)
	}
	return p.await(ctx, revision, a)
}

// await is awaitApplied for a revision that may not exist yet: the tail does not look for it.
func (p *progress) await(ctx context.Context, revision int64, a *adoption) error {
	applied := p.Revision() >= revision // read before adopted, so that it is not a later adoption's
	switch {
	case p.adopted.Load() != a:
		return errAdopted
	case applied:
		return nil
	}
	w := p.addWait(revision, a)
	var err error
	select {
	case <-w.applied:
		return nil
	case <-a.ended:
		err = errAdopted
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

// addWait adds a wait. If the revision is applied, or the adoption has ended, the wait has ended.
func (p *progress) addWait(revision int64, a *adoption) *revisionWait {
	w := &revisionWait{revision, make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.adopted.Load() != a:
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

// adopt makes a state of the store the feed's, whatever was applied before. Waits for revisions of
// before end.
func (p *progress) adopt(state sqlstore.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compacted.Store(state.Compacted)
	before := p.adopted.Swap(&adoption{epoch: state.Epoch, ended: make(chan struct{})})
	p.revision.Store(state.Revision)
	close(before.ended)
	p.waits = nil
}
