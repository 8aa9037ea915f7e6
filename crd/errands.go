package crd

import (
	"errors"
	"sync"
)

// errands are what upstream's controllers do to the store. Their workers can't
// be joined; this is what they do that would matter after the end of Run.
type errands struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// errEnded is what a controller gets that goes on after the end.
var errEnded = errors.New("the server of definitions has stopped")

// run does one errand, or fails with errEnded.
func (e *errands) run(errand func() error) error {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return errEnded
	}
	e.running.Add(1)
	e.mu.Unlock()
	defer e.running.Done()
	return errand()
}

// end refuses further errands and waits for those under way.
func (e *errands) end() {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.running.Wait()
}
