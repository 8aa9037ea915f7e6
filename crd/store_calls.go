package crd

import (
	"errors"
	"sync"
)

// storeCalls are the calls that the finalizer makes to the store. Invariant: after drain no
// call is in flight and none begins. Run calls drain before it returns, because upstream's
// finalizer offers no way to join its workers; otherwise a worker could use the store after
// the program has closed it.
type storeCalls struct {
	mu    sync.RWMutex // held for reading during each call
	ended bool
}

// errStopped is the error of a call after drain.
var errStopped = errors.New("the server of definitions has stopped")

// do makes one call, or fails with errStopped. The call makes no other.
func (c *storeCalls) do(call func() error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ended {
		return errStopped
	}
	return call()
}

// drain waits for the calls in flight and refuses further ones.
func (c *storeCalls) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}
