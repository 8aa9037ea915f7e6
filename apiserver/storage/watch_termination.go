package storage

import "sync"

// WatchTermination ends the watches of all Stores that have it in their Config, those that are
// open and those that begin later. To a client, such a watch ends like any other,
// without an error.
type WatchTermination struct {
	once  sync.Once
	begun chan struct{}
	// last is the revision up to which the watches still deliver events. It is set before
	// begun is closed.
	last int64
}

// NewWatchTermination returns a WatchTermination that has not begun.
func NewWatchTermination() *WatchTermination { return &WatchTermination{begun: make(chan struct{})} }

// After ends each watch when it has delivered all events up to a revision, which a watch of a
// resource that is gone must: its clients can't resume. With 0 all watches end at once, and their
// clients resume after the last event that they have received. Only the first call has an effect.
func (t *WatchTermination) After(revision int64) {
	t.once.Do(func() {
		t.last = revision
		close(t.begun)
	})
}

// Begun returns a channel that is closed when the watches are to end; nil for a nil
// WatchTermination.
func (t *WatchTermination) Begun() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.begun
}

// revision returns last, and whether the watches are to end.
func (t *WatchTermination) revision() (last int64, begun bool) {
	select {
	case <-t.Begun():
		return t.last, true
	default:
		return 0, false
	}
}
