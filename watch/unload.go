package watch

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// The records of a resource that nobody watches leave memory when they were not
// read in idleLooks looks, or, above Options.StateBytes, in one.
const (
	lookInterval = time.Minute
	idleLooks    = 10
)

// janitor has unused state leave memory until ctx ends.
func (f *Feed) janitor(ctx context.Context) {
	for sleep(ctx, lookInterval) {
		f.unload()
		signal(f.wake) // who is dropped is in dirty
		f.history.dropUnused()
	}
}

// unload looks once which records are read.
func (f *Feed) unload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var unread []*resourceCache
	total := 0
	for _, h := range f.caches {
		total += h.bytes
		switch {
		case h.used.Swap(false) || h.subscribers.Load() > 0 || len(h.builds) > 0 || !h.loaded && h.load != nil:
			h.idle = 0
		case h.loaded || h.followers.Load() == 0:
			h.idle++
			unread = append(unread, h)
		}
	}
	slices.SortFunc(unread, func(a, b *resourceCache) int { return cmp.Compare(b.idle, a.idle) })
	for _, h := range unread {
		if h.idle < idleLooks && (f.opts.StateBytes == 0 || total <= f.opts.StateBytes) {
			break
		}
		f.opts.Logger.Debug("watch: a resource leaves memory", "resource", h.resource, "bytes", h.bytes, "idle", h.idle)
		total -= h.bytes
		if h.followers.Load() == 0 {
			f.dropLocked(h)
		} else {
			h.unload()
		}
	}
}

// stateBytes is the size of the values of current state in memory.
func (f *Feed) stateBytes() (total int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, h := range f.caches {
		total += h.bytes
	}
	return total
}

// dropUnused drops the pages that were not used since it was called last.
func (h *history) dropUnused() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pages := range h.cells {
		for _, p := range slices.Clone(pages) {
			if !p.used {
				h.drop(p)
			}
			p.used = false
		}
	}
}
