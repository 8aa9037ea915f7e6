package watch

import (
	"sync/atomic"

	"github.com/google/btree"

	"byre/sqlstore"
)

const treeDegree = 32

// resourceCache has the current records of one resource and its last events. state.mu guards
// everything but the watchers, which have a lock of their own.
//
// Invariant: the records of a resource cache that is loaded are those at progress.revision,
// because state.apply applies every event of the resource to it. Otherwise a snapshot would show
// records of another revision than its own.
type resourceCache struct {
	resource sqlstore.Resource

	// load reads the records; nil while no reader needs them. loaded is true once load
	// has succeeded. A resource cache without records serves followers (subscriptions.Follow) from
	// its ring.
	load   *loading
	loaded bool
	// dropped is true once the feed has removed the resource cache. No more events are
	// applied to it, and its subscriptions end.
	dropped bool

	// subscribers counts the subscriptions that need the records, followers those that
	// do not. A caller that increments them holds state.mu, at least for reading, so that
	// unload sees them.
	subscribers, followers atomic.Int64
	// used is set when the records are read, and cleared by each check of unload. idle is
	// the number of checks in a row that found it cleared.
	used atomic.Bool
	idle int
	// bytes is the size of the values of the records in memory, and saved how much less the last check of
	// compressUnread has found to be held of them.
	bytes int
	saved atomic.Int64

	tree    *btree.BTreeG[*Entry]
	indexes map[string]*indexTree // by name
	// builds are the indexes that are being built. Each channel is closed when its index
	// is built.
	builds map[*Index]chan struct{}
	// cloned is the last snapshot; nil if an event was applied since. Reusing it saves
	// clones: a clone is cheap, but the next writes must copy tree nodes.
	cloned *Snapshot
	// changed is the revision of the last event. If there was none since the records were
	// loaded, it is a revision since which the resource has not changed.
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
	// from is the feed's revision when loading began. backlog has the events that were
	// applied since.
	from    int64
	backlog []Event
}

func newResourceCache(r sqlstore.Resource, opts Options, revision int64) *resourceCache {
	rc := &resourceCache{
		resource: r,
		indexes:  map[string]*indexTree{},
		builds:   map[*Index]chan struct{}{},
		changed:  revision,
		ring:     ring{maxEvents: opts.RingEvents, maxBytes: opts.RingBytes},
		watchers: watcherGroup{lists: map[Interest]*watcherList{}, indexed: map[*Index]int{}},
	}
	rc.ring.reset(revision, true)
	return rc
}

// begin sets the records to those listed at a revision, and then applies the backlog.
func (rc *resourceCache) begin(tree *btree.BTreeG[*Entry], bytes int, revision int64) {
	since := min(rc.load.unchanged, revision)
	for _, ev := range rc.load.backlog {
		if ev.Revision <= revision {
			since = ev.Revision
		}
	}
	rc.tree, rc.bytes, rc.loaded, rc.changed = tree, bytes, true, since
	rc.ring.reset(since, false)
	rc.used.Store(true)
	for _, ev := range rc.load.backlog {
		if ev.Revision > revision {
			rc.apply(ev)
		}
	}
	rc.load.backlog = nil
}

// markUsed records that the records are read.
func (rc *resourceCache) markUsed() {
	if !rc.used.Load() { // a load first, so that readers do not contend for the cache line
		rc.used.Store(true)
	}
}

// unload drops the records. The next reader loads them again. Followers continue.
func (rc *resourceCache) unload() {
	rc.tree, rc.bytes, rc.loaded, rc.load, rc.cloned = nil, 0, false, nil, nil
	rc.indexes = map[string]*indexTree{}
	rc.saved.Store(0)
	rc.ring.reset(rc.changed, true)
}

// heldBytes returns about how many bytes the values of the records take in memory.
func (rc *resourceCache) heldBytes() int { return max(rc.bytes-int(rc.saved.Load()), 0) }

// apply applies the next event of the resource. It returns false if the event creates a record
// that exists, or replaces or deletes one that does not: then the records are wrong.
func (rc *resourceCache) apply(ev Event) bool {
	rc.cloned, rc.changed = nil, ev.Revision
	if !rc.loaded {
		if rc.load != nil {
			rc.load.backlog = append(rc.load.backlog, ev)
		}
		rc.ring.push(ev)
		return true
	}
	var replaced *Entry
	if ev.New == nil {
		replaced, _ = rc.tree.Delete(ev.Old)
	} else {
		replaced, _ = rc.tree.ReplaceOrInsert(ev.New)
		rc.bytes += ev.New.Size()
	}
	if (ev.Old == nil) != (replaced == nil) {
		return false
	}
	if ev.Old = replaced; replaced != nil {
		rc.bytes -= replaced.Size()
	}
	for _, t := range rc.indexes {
		t.apply(ev)
	}
	rc.ring.push(ev)
	return true
}

// indexesInUse returns the indexes that snapshots have, that are being built, or by which
// subscriptions narrow.
func (rc *resourceCache) indexesInUse() []*Index {
	indexes := rc.watchers.indexes()
	for _, t := range rc.indexes {
		indexes = append(indexes, t.Index)
	}
	for index := range rc.builds {
		indexes = append(indexes, index)
	}
	return indexes
}

// snapshot returns a snapshot of the records at the feed's revision; false if they are not in
// memory. Unless cloned is set, the caller holds state.mu for writing.
func (rc *resourceCache) snapshot(revision int64) (Snapshot, bool) {
	if rc.dropped || !rc.loaded {
		return Snapshot{}, false
	}
	rc.markUsed()
	if rc.cloned == nil {
		rc.cloned = &Snapshot{cache: rc, since: rc.changed, tree: rc.tree.Clone()}
		for name, t := range rc.indexes {
			if rc.cloned.indexes == nil {
				rc.cloned.indexes = map[string]indexSnapshot{}
			}
			rc.cloned.indexes[name] = indexSnapshot{t.Index, t.tree.Clone()}
		}
	}
	s := *rc.cloned
	s.revision = revision
	return s, true
}
