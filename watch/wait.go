package watch

import (
	"context"
	"errors"
)

// revisionWait is one call that waits until a revision is applied.
type revisionWait struct {
	revision int64
	// applied is closed when the revision is applied.
	applied chan struct{}
}

// errAdopted means that the feed has adopted another state of the store, in which the
// awaited revision may never come.
var errAdopted = errors.New("the feed has started again")

// WaitFor waits until the feed has applied a revision. It fails with ErrCompacted if the store
// begins a new epoch meanwhile, because the revision belongs to the old one; with ErrClosed; and
// with the context's error.
func (f *Feed) WaitFor(ctx context.Context, revision int64) error {
	if err := f.wait(ctx, f.started); err != nil {
		return err
	}
	for epoch := f.adoption().epoch; ; {
		a := f.adoption()
		if a.epoch != epoch {
			return ErrCompacted
		}
		if err := f.awaitApplied(ctx, revision, a); !errors.Is(err, errAdopted) {
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
func (f *Feed) Position(ctx context.Context) (Position, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return Position{}, err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return Position{f.revision, f.adopted}, nil
}

// AwaitChange waits until the feed has applied a change after a position. It fails with
// ErrCompacted where a Subscription would: if the feed has read all state again since the position
// was made. It fails with ErrClosed, and with the context's error.
func (f *Feed) AwaitChange(ctx context.Context, after Position) error {
	err := f.await(ctx, after.Revision+1, after.adopted)
	if errors.Is(err, errAdopted) {
		return ErrCompacted
	}
	return err
}

// adoption returns the last adoption.
func (f *Feed) adoption() *adoption {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.adopted
}

// awaitApplied waits until the feed has applied a revision, which the caller has learned while a
// was the last adoption. If other processes write to the store, the change may be theirs, and
// awaitApplied has the tail read it at once. It fails with errAdopted when the feed adopts another
// state, which may be at a lower revision and never reach the awaited one.
func (f *Feed) awaitApplied(ctx context.Context, revision int64, a *adoption) error {
	if !f.isSoleWriter() && revision > f.Revision() {
		f.hint(revision)
	}
	return f.await(ctx, revision, a)
}

// await is awaitApplied for a revision that may not exist yet: the tail does not look for it.
func (f *Feed) await(ctx context.Context, revision int64, a *adoption) error {
	f.mu.RLock()
	applied, ended := f.revision >= revision, f.adopted != a
	f.mu.RUnlock()
	switch {
	case ended:
		return errAdopted
	case applied:
		return nil
	}
	w, err := f.addWait(revision, a)
	if w == nil || err != nil {
		return err
	}
	select {
	case <-w.applied:
		return nil
	case <-a.ended:
		err = errAdopted
	case <-f.done:
		err = ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	f.removeWait(w)
	return err
}

// addWait adds a wait to Feed.waits. It returns nil if the revision is applied already.
func (f *Feed) addWait(revision int64, a *adoption) (*revisionWait, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.adopted != a:
		return nil, errAdopted
	case f.revision >= revision:
		return nil, nil
	}
	w := revisionWait{revision, make(chan struct{})}
	f.waits = append(f.waits, w)
	return &w, nil
}

func (f *Feed) removeWait(gone *revisionWait) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, w := range f.waits {
		if w.applied == gone.applied {
			f.waits = append(f.waits[:i], f.waits[i+1:]...)
			return
		}
	}
}

// endWaitsLocked ends the waits for revisions that are applied.
func (f *Feed) endWaitsLocked() {
	left := f.waits[:0]
	for _, w := range f.waits {
		if w.revision <= f.revision {
			close(w.applied)
		} else {
			left = append(left, w)
		}
	}
	clear(f.waits[len(left):])
	f.waits = left
}
