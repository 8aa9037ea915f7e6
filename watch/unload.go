package watch

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Once an unloadInterval the feed checks which resources were read. It unloads the records of a
// resource that nobody watches and nobody has read for idleChecks checks in a row, or, above
// Options.StateBytes, for one check.
const (
	unloadInterval = time.Minute
	idleChecks     = 10
)

// unloadUnread unloads unread records and pages of history until ctx ends.
func (f *Feed) unloadUnread(ctx context.Context) {
	for sleep(ctx, unloadInterval) {
		f.unload()
		signal(f.eventsAdded) // wakes the watchers of dropped resource caches, whose subscriptions end
		f.history.dropUnused()
	}
}

// unload makes one check.
func (f *Feed) unload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var unread []*resourceCache
	total := 0
	now := time.Now()
	for _, rc := range f.caches {
		f.dropExpired(rc, now)
		total += rc.bytes
		switch {
		case rc.used.Swap(false) || rc.subscribers.Load() > 0 || len(rc.builds) > 0 || !rc.loaded && rc.load != nil:
			rc.idle = 0
		case rc.loaded || rc.followers.Load() == 0:
			rc.idle++
			unread = append(unread, rc)
		}
	}
	slices.SortFunc(unread, func(a, b *resourceCache) int { return cmp.Compare(b.idle, a.idle) })
	for _, rc := range unread {
		if rc.idle < idleChecks && (f.opts.StateBytes == 0 || total <= f.opts.StateBytes) {
			break
		}
		f.opts.Logger.Debug("watch: a resource leaves memory", "resource", rc.resource, "bytes", rc.bytes, "idle", rc.idle)
		total -= rc.bytes
		if rc.followers.Load() == 0 {
			f.dropLocked(rc)
		} else {
			f.dropKept(rc, len(rc.kept))
			rc.unload()
		}
	}
}

// stateBytes returns the size of the values of all current records in memory, in bytes.
func (f *Feed) stateBytes() (total int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, rc := range f.caches {
		total += rc.bytes
	}
	return total
}
