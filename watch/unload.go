package watch

import (
	"cmp"
	"slices"
	"time"
)

// Once an Options.CheckInterval the feed checks which resources were read. It unloads the records of a
// resource that nobody watches and nobody has read for idleChecks checks in a row, or, above
// Options.StateBytes, for one check.
const idleChecks = 10

// unload makes one check of the records.
func (s *state) unload() {
	s.mu.Lock()
	defer s.unlock()
	s.kept.dropExpired(time.Now())
	var unread []*resourceCache
	total := 0
	for _, rc := range s.caches {
		total += rc.heldBytes()
		switch {
		case slices.Contains(s.opts.Resident, rc.resource):
		case rc.used.Swap(false) || rc.subscribers.Load() > 0 || len(rc.builds) > 0 || !rc.loaded && rc.load != nil:
			rc.idle = 0
		case rc.loaded || rc.followers.Load() == 0:
			rc.idle++
			unread = append(unread, rc)
		}
	}
	slices.SortFunc(unread, func(a, b *resourceCache) int { return cmp.Compare(b.idle, a.idle) })
	for _, rc := range unread {
		if rc.idle < idleChecks && (s.opts.StateBytes == 0 || total <= s.opts.StateBytes) {
			break
		}
		s.opts.Logger.Debug("watch: a resource leaves memory", "resource", rc.resource, "bytes", rc.heldBytes(), "idle", rc.idle)
		total -= rc.heldBytes()
		if rc.followers.Load() == 0 {
			s.drop(rc)
		} else {
			s.kept.drop(rc, maxKept)
			rc.unload()
		}
	}
}

// size returns the number of resources whose records are in memory, and the bytes that their values take.
func (s *state) size() (resources, bytes int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, rc := range s.caches {
		if rc.loaded {
			resources++
		}
		bytes += rc.heldBytes()
	}
	return resources, bytes
}
