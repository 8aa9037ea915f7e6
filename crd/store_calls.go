package crd

import (
	"errors"
	"sync"
)

// storeCalls counts the calls that upstream's controllers make to the store. Their
// workers can't be joined at the end of Run; the calls, which is what would matter
// then, can.
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
