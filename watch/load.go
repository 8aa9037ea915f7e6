package watch

import (
	"context"
	"fmt"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Snapshot returns a resource's records as of the feed's revision. The first
// call for a resource loads it.
func (f *Feed) Snapshot(ctx context.Context, r Resource) (Snapshot, error) {
	for {
		h, err := f.cacheOf(ctx, r)
		if err != nil {
			return Snapshot{}, err
		}
		if s, ok := f.snapshotOf(h); ok {
			return s, nil
		}
	}
}

func (f *Feed) snapshotOf(h *resourceCache) (Snapshot, bool) {
	f.mu.RLock()
	if h.cloned != nil && !h.gone {
		defer f.mu.RUnlock()
		h.use()
		s := *h.cloned
		s.revision = f.revision
		return s, true
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.gone || !h.loaded {
		return Snapshot{}, false
	}
	h.use()
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
	h := f.caches[resourceOf(key)]
	if h == nil || !h.loaded {
		return nil, 0, false
	}
	h.use()
	e, _ = h.tree.Get(p)
	return e, f.revision, true
}

// cacheOf returns a loaded resource cache. It may be dropped, or its records, at any time.
func (f *Feed) cacheOf(ctx context.Context, r Resource) (*resourceCache, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return nil, err
	}
	for {
		h, load := f.join(r)
		if h == nil {
			return nil, ErrClosed
		}
		if err := f.wait(ctx, load.done); err != nil {
			return nil, err
		}
		if load.err != nil {
			return nil, load.err
		}
		f.mu.RLock()
		loaded := h.loaded
		f.mu.RUnlock()
		if loaded {
			return h, nil
		}
	}
}

// join returns the resource cache of r, and starts loading it unless that was done; nil
// when the feed is closed.
func (f *Feed) join(r Resource) (*resourceCache, *loading) {
	f.mu.RLock()
	h := f.caches[r]
	if h != nil && h.load != nil {
		defer f.mu.RUnlock()
		return h, h.load
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil
	}
	h = f.cacheOfLocked(r)
	if h.load == nil {
		load := &loading{done: make(chan struct{}), unchanged: h.changed, from: f.revision}
		h.load = load
		f.group.Go(func() { f.load(f.running, h, load) })
	}
	return h, h.load
}

// cacheOfLocked returns the resource cache of r, which may be without records.
func (f *Feed) cacheOfLocked(r Resource) *resourceCache {
	h := f.caches[r]
	if h == nil {
		h = newResourceCache(r, f.opts, f.revision)
		f.caches[r] = h
	}
	return h
}

// load reads the records at one revision, and then takes what has changed
// since the resource cache was made.
func (f *Feed) load(ctx context.Context, h *resourceCache, load *loading) {
	bytes := 0
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
		bytes += len(r.Value)
		return nil
	})
	switch {
	case err != nil:
	case listed.Revision < load.from:
		// The backlog does not have what the list lacks.
		err = fmt.Errorf("%w: list of revision %d, when %d was applied", sqlstore.ErrUnavailable, listed.Revision, load.from)
	default:
		// The invariant is that a loaded resource cache is at the feed's revision.
		err = f.WaitFor(ctx, listed.Revision)
	}
	if f.loaded(h, load, err, func() { h.begin(tree, bytes, listed.Revision) }) {
		f.fillRing(ctx, h)
	}
}

// loaded ends a loading, by begin unless it failed, and says whether there is a
// resource cache with records now.
func (f *Feed) loaded(h *resourceCache, load *loading, err error, begin func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(load.done)
	switch {
	case h.gone:
		return false
	case err != nil:
		load.err, h.load = err, nil
		return false
	}
	begin()
	return true
}
