package watch

import (
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

// hub is the current state of one resource and its last events.
//
// Everything but the waiters is guarded by Feed.mu. Invariant: a hub that is
// loaded is at Feed.revision.
type hub struct {
	resource Resource

	// ready is closed when loading has ended, by success (loaded) or not (err).
	ready  chan struct{}
	loaded bool
	err    error
	// gone is set when a reset has dropped the hub.
	gone bool
	// backlog is what was applied while the hub was loading.
	backlog []prepared

	tree    *btree.BTreeG[*Entry]
	indexes map[string]*indexTree // those that were asked by, by name
	// builds are the indexes that are being built; each channel is closed at
	// the end.
	builds map[*Index]chan struct{}
	// cloned is the last snapshot handed out; nil when something has changed
	// since. Cloning is cheap, but makes the next writes copy tree nodes.
	cloned *Snapshot
	// changed is the revision of the last change to the tree, or of loading.
	changed int64
	ring    ring

	waiters waiters
}

func newHub(r Resource, opts Options) *hub {
	return &hub{
		resource: r,
		indexes:  map[string]*indexTree{},
		builds:   map[*Index]chan struct{}{},
		ready:    make(chan struct{}),
		ring:     ring{maxEvents: opts.RingEvents, maxBytes: opts.RingBytes},
		waiters:  waiters{lists: map[scope]*waitList{}, indexed: map[*Index]int{}},
	}
}

// prepared is a change with its entry made (outside of the lock).
type prepared struct {
	sqlstore.Change
	entry *Entry // nil for a delete
}

// begin takes what was listed at a revision, and then the backlog.
func (h *hub) begin(tree *btree.BTreeG[*Entry], revision int64) {
	h.tree, h.loaded, h.ring.since, h.changed = tree, true, revision, revision
	for _, p := range h.backlog {
		if p.Revision > revision {
			h.apply(p)
		}
	}
	h.backlog = nil
	close(h.ready)
}

// apply makes one change. It returns false when the change does not fit the
// state, which means that the state is wrong.
func (h *hub) apply(p prepared) bool {
	if !h.loaded {
		h.backlog = append(h.backlog, p)
		return true
	}
	h.cloned, h.changed = nil, p.Revision
	ev := Event{Revision: p.Revision, New: p.entry}
	if p.entry == nil {
		ev.Old, _ = h.tree.Delete(probe(p.New.Namespace, p.New.Name))
	} else {
		// The tree's strings live as long as the process does: one of each.
		p.entry.Group, p.entry.Resource = h.resource.Group, h.resource.Name
		ev.Old, _ = h.tree.ReplaceOrInsert(p.entry)
	}
	if (p.Op == sqlstore.Create) != (ev.Old == nil) {
		return false
	}
	for _, t := range h.indexes {
		t.apply(ev)
	}
	h.ring.push(ev)
	return true
}

// inUse returns the indexes that somebody finds records by, or waits by.
func (h *hub) inUse() []*Index {
	indexes := h.waiters.indexes()
	for _, t := range h.indexes {
		indexes = append(indexes, t.Index)
	}
	for index := range h.builds {
		indexes = append(indexes, index)
	}
	return indexes
}

// snapshot needs Feed.mu for writing unless cloned is set.
func (h *hub) snapshot() *Snapshot {
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
