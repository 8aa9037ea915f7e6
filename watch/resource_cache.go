package watch

import (
	"sync/atomic"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Resource names one resource of the store.
type Resource struct {
	Group string
	Name  string
	Owner sqlstore.Owner
}

func resourceOf(k sqlstore.Key) Resource { return Resource{k.Group, k.Resource, k.Owner} }

const treeDegree = 32

// resourceCache is the current state of one resource and its last events.
//
// Everything but the watchers is guarded by Feed.mu. Invariant: a resource cache that is
// loaded is at Feed.revision.
type resourceCache struct {
	resource Resource

	// load reads the records; nil while nobody wants them. loaded is set when
	// it has ended well. A resource cache without records has the changes for those who
	// follow them (Feed.Follow).
	load   *loading
	loaded bool
	// gone is set when the resource cache has been dropped.
	gone bool

	// subscribers need the records, followers do not. They are counted up with
	// Feed.mu held for reading at least.
	subscribers, followers atomic.Int64
	// used is set when the records are read; idle is how many looks ago that
	// was (Feed.unload).
	used atomic.Bool
	idle int
	// bytes is the size of the records' values.
	bytes int

	tree    *btree.BTreeG[*Entry]
	indexes map[string]*indexTree // those that were asked by, by name
	// builds are the indexes that are being built; each channel is closed at
	// the end.
	builds map[*Index]chan struct{}
	// cloned is the last snapshot handed out; nil when something has changed
	// since. Cloning is cheap, but makes the next writes copy tree nodes.
	cloned *Snapshot
	// changed is the revision of the last change, or an earlier one than that
	// of loading since which there was none.
	changed int64
	ring    ring

	watchers watcherGroup
}

// loading reads a resource's records. err is set before done is closed.
type loading struct {
	done chan struct{}
	err  error
	// unchanged is the revision of the last change before loading began.
	unchanged int64
	// from is the feed's revision when loading began; backlog is what was applied
	// meanwhile.
	from    int64
	backlog []prepared
}

func newResourceCache(r Resource, opts Options, revision int64) *resourceCache {
	h := &resourceCache{
		resource: r,
		indexes:  map[string]*indexTree{},
		builds:   map[*Index]chan struct{}{},
		changed:  revision,
		ring:     ring{maxEvents: opts.RingEvents, maxBytes: opts.RingBytes},
		watchers: watcherGroup{lists: map[scope]*watcherList{}, indexed: map[*Index]int{}},
	}
	h.ring.reset(revision, true)
	return h
}

// prepared is a change with its entry made (outside of the lock).
type prepared struct {
	sqlstore.Change
	entry *Entry // nil for a delete
}

// begin takes what was listed at a revision, and then the backlog.
func (h *resourceCache) begin(tree *btree.BTreeG[*Entry], bytes int, revision int64) {
	since := min(h.load.unchanged, revision)
	for _, p := range h.load.backlog {
		if p.Revision <= revision {
			since = p.Revision
		}
	}
	h.tree, h.bytes, h.loaded, h.changed = tree, bytes, true, since
	h.ring.reset(since, false)
	h.used.Store(true)
	for _, p := range h.load.backlog {
		if p.Revision > revision {
			h.apply(p)
		}
	}
	h.load.backlog = nil
}

// use notes that the records are read.
func (h *resourceCache) use() {
	if !h.used.Load() { // readers don't contend for it
		h.used.Store(true)
	}
}

// unload drops the records. Who reads them again loads them again; followers go
// on.
func (h *resourceCache) unload() {
	h.tree, h.bytes, h.loaded, h.load, h.cloned = nil, 0, false, nil, nil
	h.indexes = map[string]*indexTree{}
	h.ring.reset(h.changed, true)
}

// intern lets an entry share the strings of its resource, which live as long as the
// process does. It comes before the entry's first apply: entries of the ring are read
// without a lock.
func (h *resourceCache) intern(e *Entry) {
	e.Group, e.Resource = h.resource.Group, h.resource.Name
}

// apply makes one change. It returns false when the change does not fit the
// state, which means that the state is wrong.
func (h *resourceCache) apply(p prepared) bool {
	h.cloned, h.changed = nil, p.Revision
	ev := Event{Revision: p.Revision, New: p.entry}
	if !h.loaded {
		if h.load != nil {
			h.load.backlog = append(h.load.backlog, p)
		}
		if p.Old != nil {
			ev.Old = NewEntry(*p.Old)
		}
		h.ring.push(ev)
		return true
	}
	if p.entry == nil {
		ev.Old, _ = h.tree.Delete(probe(p.New.Namespace, p.New.Name))
	} else {
		ev.Old, _ = h.tree.ReplaceOrInsert(p.entry)
		h.bytes += len(p.entry.Value)
	}
	if (p.Op == sqlstore.Create) != (ev.Old == nil) {
		return false
	}
	if ev.Old != nil {
		h.bytes -= len(ev.Old.Value)
	}
	for _, t := range h.indexes {
		t.apply(ev)
	}
	h.ring.push(ev)
	return true
}

// inUse returns the indexes that somebody finds records by, or waits by.
func (h *resourceCache) inUse() []*Index {
	indexes := h.watchers.indexes()
	for _, t := range h.indexes {
		indexes = append(indexes, t.Index)
	}
	for index := range h.builds {
		indexes = append(indexes, index)
	}
	return indexes
}

// snapshot needs Feed.mu for writing unless cloned is set.
func (h *resourceCache) snapshot() *Snapshot {
	if h.cloned == nil {
		h.cloned = &Snapshot{since: h.changed, tree: h.tree.Clone()}
		for name, t := range h.indexes {
			if h.cloned.indexes == nil {
				h.cloned.indexes = map[string]indexSnapshot{}
			}
			h.cloned.indexes[name] = indexSnapshot{t.Index, t.tree.Clone()}
		}
	}
	return h.cloned
}
