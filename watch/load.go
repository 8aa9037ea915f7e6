package watch

import (
	"context"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Snapshot returns a resource's records as of the feed's revision. The first
// call for a resource loads it.
func (f *Feed) Snapshot(ctx context.Context, r Resource) (Snapshot, error) {
	for {
		h, err := f.hub(ctx, r)
		if err != nil {
			return Snapshot{}, err
		}
		if s, ok := f.snapshotOf(h); ok {
			return s, nil
		}
	}
}

func (f *Feed) snapshotOf(h *hub) (Snapshot, bool) {
	f.mu.RLock()
	if h.cloned != nil && !h.gone {
		defer f.mu.RUnlock()
		s := *h.cloned
		s.revision = f.revision
		return s, true
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.gone {
		return Snapshot{}, false
	}
	s := *h.snapshot()
	s.revision = f.revision
	return s, true
}

// Lookup returns one record and the feed's revision without loading anything:
// loaded is false, and nothing else is said, when nobody has read the resource
// before.
func (f *Feed) Lookup(key sqlstore.Key) (e *Entry, revision int64, loaded bool) {
	p := probe(key.Namespace, key.Name)
	f.mu.RLock()
	defer f.mu.RUnlock()
	h := f.hubs[resourceOf(key)]
	if h == nil || !h.loaded {
		return nil, 0, false
	}
	e, _ = h.tree.Get(p)
	return e, f.revision, true
}

// hub returns a loaded hub.
func (f *Feed) hub(ctx context.Context, r Resource) (*hub, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return nil, err
	}
	for {
		h := f.join(r)
		if h == nil {
			return nil, ErrClosed
		}
		if err := f.wait(ctx, h.ready); err != nil {
			return nil, err
		}
		f.mu.RLock()
		loaded, err := h.loaded, h.err
		f.mu.RUnlock()
		if loaded || err != nil {
			return h, err
		}
		// It was dropped while it was loading.
	}
}

// join returns the hub of r, and starts loading it when it is new; nil when
// the feed is closed.
func (f *Feed) join(r Resource) *hub {
	f.mu.RLock()
	h := f.hubs[r]
	f.mu.RUnlock()
	if h != nil {
		return h
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.hubs[r]; h != nil {
		return h
	}
	if f.closed {
		return nil
	}
	h = newHub(r, f.opts)
	f.hubs[r] = h
	f.group.Go(func() { f.load(f.running, h) })
	return h
}

// load reads the records at one revision, and then takes what has changed
// since the hub was made.
func (f *Feed) load(ctx context.Context, h *hub) {
	tree := btree.NewG(treeDegree, lessEntry)
	q := sqlstore.Query{Range: sqlstore.Range{Group: h.resource.Group, Resource: h.resource.Name, Owner: h.resource.Owner}}
	namespaces := map[string]string{}
	listed, err := f.source.List(ctx, q, func(r sqlstore.Record) error {
		// One copy of the strings that all records share.
		r.Group, r.Resource = h.resource.Group, h.resource.Name
		if ns, ok := namespaces[r.Namespace]; ok {
			r.Namespace = ns
		} else {
			namespaces[r.Namespace] = r.Namespace
		}
		tree.ReplaceOrInsert(NewEntry(r))
		return nil
	})
	if err == nil {
		// The invariant is that a loaded hub is at the feed's revision.
		err = f.WaitFor(ctx, listed.Revision)
	}
	if f.loaded(h, tree, listed.Revision, err) {
		f.fillRing(ctx, h)
	}
}

// loaded ends the loading of a hub, and says whether it is of use.
func (f *Feed) loaded(h *hub, tree *btree.BTreeG[*Entry], revision int64, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case h.gone:
		close(h.ready)
	case err != nil:
		h.err = err
		delete(f.hubs, h.resource)
		close(h.ready)
	default:
		h.begin(tree, revision)
	}
	return h.loaded && !h.gone
}
