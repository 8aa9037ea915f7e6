package crd

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
)

// changedGroups are the API groups whose definitions have changed since they were taken
// last. It is safe for concurrent use.
type changedGroups struct {
	// notify receives a value after groups were added. One value stands for any number
	// of groups.
	notify chan struct{}

	mu     sync.Mutex
	groups sets.Set[string]
}

func newChangedGroups() *changedGroups {
	return &changedGroups{notify: make(chan struct{}, 1), groups: sets.New[string]()}
}

func (c *changedGroups) add(group string) {
	c.mu.Lock()
	c.groups.Insert(group)
	c.mu.Unlock()
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// take returns the groups and empties the set.
func (c *changedGroups) take() sets.Set[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	groups := c.groups
	c.groups = sets.New[string]()
	return groups
}
