package objectstore

import "sync"

// Ending ends the watches of the Stores that have it in their Config: those that
// are open, and those that begin afterwards. Clients see a watch that ends like
// any other, without an error.
type Ending struct {
	once  sync.Once
	begun chan struct{}
	// last is the revision up to which the watches still give what happens; set
	// before begun is closed.
	last int64
}

// NewEnding returns an Ending that has not begun.
func NewEnding() *Ending { return &Ending{begun: make(chan struct{})} }

// Now ends all watches at once: their clients go on from the last event that they
// have got, elsewhere.
func (e *Ending) Now() { e.After(0) }

// After ends each watch when it has given all events up to a revision: where there
// is nothing to go on with, clients must have seen everything. Only the first call of
// Now and After has an effect.
func (e *Ending) After(revision int64) {
	e.once.Do(func() {
		e.last = revision
		close(e.begun)
	})
}

// Begun is closed when the watches are to end. It is nil for no Ending.
func (e *Ending) Begun() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.begun
}

// revision is what After was given, once it was.
func (e *Ending) revision() (last int64, begun bool) {
	select {
	case <-e.Begun():
		return e.last, true
	default:
		return 0, false
	}
}
