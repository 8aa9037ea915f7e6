package crd

import (
	"errors"
	"sync"
)

// storeCalls counts the calls that upstream's controllers make to the store. Invariant:
// after drain no call is in flight and none begins. Run calls drain before it returns,
// because upstream's controllers offer no way to join their workers; otherwise a worker
// could use the store after the program has closed it.
type storeCalls struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// errStopped is the error of a call after drain.
var errStopped = errors.New("the server of definitions has stopped")

// do makes one call, or fails with errStopped.
func (c *storeCalls) do(call func() error) error {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return errStopped
	}
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	return call()
}

// drain refuses further calls and waits for those in flight.
func (c *storeCalls) drain() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.running.Wait()
}
