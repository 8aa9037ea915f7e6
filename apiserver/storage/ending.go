package storage

import "sync"

// Ending ends the watches of all Stores that have it in their Config, those that are
// open and those that begin later. To a client, such a watch ends like any other,
// without an error.
type Ending struct {
	once  sync.Once
	begun chan struct{}
	// last is the revision up to which the watches still deliver events. It is set before
	// begun is closed.
	last int64
}

// NewEnding returns an Ending that has not begun.
func NewEnding() *Ending { return &Ending{begun: make(chan struct{})} }

// Now ends all watches at once. Their clients resume after the last event that they have
// received.
func (e *Ending) Now() { e.After(0) }

// After ends each watch when it has delivered all events up to a revision. It is for a
// resource that is gone: its clients can't resume, so they must have seen every event.
// Only the first call of Now and After has an effect.
func (e *Ending) After(revision int64) {
	e.once.Do(func() {
		e.last = revision
		close(e.begun)
	})
}

// Begun returns a channel that is closed when the watches are to end; nil for a nil
// Ending.
func (e *Ending) Begun() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.begun
}

// revision returns last, and whether the watches are to end.
func (e *Ending) revision() (last int64, begun bool) {
	select {
	case <-e.Begun():
		return e.last, true
	default:
		return 0, false
	}
}
