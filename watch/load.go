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
		rc, err := f.cacheOf(ctx, r)
		if err != nil {
			return Snapshot{}, err
		}
		if s, ok := f.snapshotOf(rc); ok {
			return s, nil
		}
	}
}

// maxSmallBytes bounds the values in memory up to which SnapshotSmall loads more.
const maxSmallBytes = 128 << 20

// SnapshotSmall is Snapshot for a resource that is small enough to be kept for its next
// reader: the values of all resources in memory then take no more than maxSmallBytes, or
// than half of what they may take. It loads nothing and returns false for other resources
// and for one without objects. After a start it waits until the sizes are known.
func (f *Feed) SnapshotSmall(ctx context.Context, r Resource) (Snapshot, bool, error) {
	most := maxSmallBytes
	if f.opts.StateBytes > 0 {
		most = min(most, f.opts.StateBytes/2)
	}
	if !f.isLoaded(r) {
		usage, err := f.WaitForUsage(ctx, r)
		if err != nil || usage.Objects == 0 || usage.Bytes > int64(most-f.stateBytes()) {
			return Snapshot{}, false, err
		}
	}
	snapshot, err := f.Snapshot(ctx, r)
	return snapshot, err == nil, err
}

// isLoaded reports whether the records of a resource are in memory.
func (f *Feed) isLoaded(r Resource) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	rc := f.caches[r]
	return rc != nil && rc.loaded
}

func (f *Feed) snapshotOf(rc *resourceCache) (Snapshot, bool) {
	f.mu.RLock()
	if rc.cloned != nil && !rc.gone {
		defer f.mu.RUnlock()
		rc.use()
		s := *rc.cloned
		s.revision = f.revision
		return s, true
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc.gone || !rc.loaded {
		return Snapshot{}, false
	}
	rc.use()
	s := *rc.snapshot()
	s.revision = f.revision
	return s, true
}

// Lookup returns one record and the feed's revision without loading anything.
// loaded is false, and the others are zero, where the resource is not in memory.
func (f *Feed) Lookup(key sqlstore.Key) (e *Entry, revision int64, loaded bool) {
	p := probe(key.Namespace, key.Name)
	f.mu.RLock()
	defer f.mu.RUnlock()
	rc := f.caches[resourceOf(key)]
	if rc == nil || !rc.loaded {
		return nil, 0, false
	}
	rc.use()
	e, _ = rc.tree.Get(p)
	return e, f.revision, true
}

// cacheOf returns a loaded resource cache. The feed may drop the cache, or unload its
// records, at any time.
func (f *Feed) cacheOf(ctx context.Context, r Resource) (*resourceCache, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return nil, err
	}
	for {
		rc, load := f.join(r)
		if rc == nil {
			return nil, ErrClosed
		}
		if err := f.wait(ctx, load.done); err != nil {
			return nil, err
		}
		if load.err != nil {
			return nil, load.err
		}
		f.mu.RLock()
		loaded := rc.loaded
		f.mu.RUnlock()
		if loaded {
			return rc, nil
		}
	}
}

// join returns the resource cache of r and its loading, which it starts unless another
// reader has started it. It returns nil if the feed is closed.
func (f *Feed) join(r Resource) (*resourceCache, *loading) {
	f.mu.RLock()
	rc := f.caches[r]
	if rc != nil && rc.load != nil {
		defer f.mu.RUnlock()
		return rc, rc.load
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil
	}
	rc = f.cacheOfLocked(r)
	if rc.load == nil {
		load := &loading{done: make(chan struct{}), unchanged: rc.changed, from: f.revision}
		rc.load = load
		f.group.Go(func() { f.load(f.running, rc, load) })
	}
	return rc, rc.load
}

// cacheOfLocked returns the resource cache of r, which may be without records.
func (f *Feed) cacheOfLocked(r Resource) *resourceCache {
	rc := f.caches[r]
	if rc == nil {
		rc = newResourceCache(r, f.opts, f.revision)
		f.caches[r] = rc
	}
	return rc
}

// load reads the records at one revision, and then takes what has changed
// since the resource cache was made.
func (f *Feed) load(ctx context.Context, rc *resourceCache, load *loading) {
	bytes := 0
	a := f.adoption()
	tree := btree.NewG(treeDegree, lessEntry)
	q := sqlstore.Query{Range: sqlstore.Range{Group: rc.resource.Group, Resource: rc.resource.Name, Owner: rc.resource.Owner}}
	namespaces := map[string]string{}
	listed, err := f.source.List(ctx, q, func(r sqlstore.Record) error {
		// One copy of the strings that all records share.
		r.Group, r.Resource = rc.resource.Group, rc.resource.Name
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
		// The backlog begins at load.from: it lacks the changes between the two.
		err = fmt.Errorf("%w: list of revision %d, when %d was applied", sqlstore.ErrUnavailable, listed.Revision, load.from)
	default:
		// Invariant: a loaded resource cache is at the feed's revision. When the feed
		// adopts another state meanwhile, it has dropped the cache.
		err = f.awaitApplied(ctx, listed.Revision, a)
	}
	if f.loaded(rc, load, err, func() { rc.begin(tree, bytes, listed.Revision) }) {
		f.fillRing(ctx, rc)
	}
}

// loaded ends a loading, by begin unless it failed. It returns true when the resource
// cache has its records.
func (f *Feed) loaded(rc *resourceCache, load *loading, err error, begin func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(load.done)
	switch {
	case rc.gone:
		return false
	case err != nil:
		load.err, rc.load = err, nil
		return false
	}
	begin()
	return true
}
