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
// Everything but the watchers is guarded by Feed.mu. Invariant: the records of a
// resource cache that is loaded are those of Feed.revision; applyLocked applies every
// event of the resource to it.
type resourceCache struct {
	resource Resource

	// load reads the records; nil while no reader wants them. loaded is true from
	// its success on. A resource cache without records serves followers (Feed.Follow),
	// from its ring.
	load   *loading
	loaded bool
	// gone is true when the resource cache was dropped. It is then at no revision, and
	// its subscriptions end.
	gone bool

	// subscribers counts the subscriptions that need the records, followers those that
	// do not. They are raised with Feed.mu held, for reading at least, so that unload
	// sees them.
	subscribers, followers atomic.Int64
	// used is set by a read of the records and cleared by unload's check; idle is the
	// number of checks in a row that found it cleared.
	used atomic.Bool
	idle int
	// bytes is the size of the records' values.
	bytes int

	tree    *btree.BTreeG[*Entry]
	indexes map[string]*indexTree // by name
	// builds are the indexes that are being built; each channel is closed at
	// the end.
	builds map[*Index]chan struct{}
	// cloned is the last snapshot handed out; nil when an event was applied since.
	// A clone is cheap, but makes the next writes copy tree nodes.
	cloned *Snapshot
	// changed is the revision of the last event, or, where there was none since the
	// records were loaded, a revision since which the resource has not changed.
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
	backlog []Event
}

func newResourceCache(r Resource, opts Options, revision int64) *resourceCache {
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

// begin takes what was listed at a revision, and then the backlog.
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

// use records that the records are read.
func (rc *resourceCache) use() {
	if !rc.used.Load() { // readers don't contend for it
		rc.used.Store(true)
	}
}

// unload drops the records. The next reader loads them again; followers go on.
func (rc *resourceCache) unload() {
	rc.tree, rc.bytes, rc.loaded, rc.load, rc.cloned = nil, 0, false, nil, nil
	rc.indexes = map[string]*indexTree{}
	rc.ring.reset(rc.changed, true)
}

// intern lets an entry share the strings of its resource, which live as long as the
// process does. It comes before the entry's first apply: entries of the ring are read
// without a lock.
func (rc *resourceCache) intern(e *Entry) {
	e.Group, e.Resource = rc.resource.Group, rc.resource.Name
}

// apply applies the event after the last one. It returns false when the event does
// not fit the state, which means that the state is wrong.
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
		rc.bytes += len(ev.New.Value)
	}
	if (ev.Old == nil) != (replaced == nil) {
		return false
	}
	if ev.Old = replaced; replaced != nil {
		rc.bytes -= len(replaced.Value)
	}
	for _, t := range rc.indexes {
		t.apply(ev)
	}
	rc.ring.push(ev)
	return true
}

// inUse returns the indexes that records are found by or subscriptions narrow by.
func (rc *resourceCache) inUse() []*Index {
	indexes := rc.watchers.indexes()
	for _, t := range rc.indexes {
		indexes = append(indexes, t.Index)
	}
	for index := range rc.builds {
		indexes = append(indexes, index)
	}
	return indexes
}

// snapshot needs Feed.mu for writing unless cloned is set.
func (rc *resourceCache) snapshot() *Snapshot {
	if rc.cloned == nil {
		rc.cloned = &Snapshot{since: rc.changed, tree: rc.tree.Clone()}
		for name, t := range rc.indexes {
			if rc.cloned.indexes == nil {
				rc.cloned.indexes = map[string]indexSnapshot{}
			}
			rc.cloned.indexes[name] = indexSnapshot{t.Index, t.tree.Clone()}
		}
	}
	return rc.cloned
}
