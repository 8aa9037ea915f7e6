package watch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"byre/sqlstore"
	"byre/sqlstore/elapsed"
)

// Snapshot returns the records of a resource at the feed's revision. The first call for a
// resource loads it. It fails with ErrClosed, with the context's error, and with the errors of
// the store's List.
func (f *Feed) Snapshot(ctx context.Context, r sqlstore.Resource) (Snapshot, error) {
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

// Snapshots returns snapshots of resources, all of one revision: the feed's after they were loaded. The
// errors are those of Snapshot.
func (f *Feed) Snapshots(ctx context.Context, resources ...sqlstore.Resource) ([]Snapshot, error) {
	for {
		caches := make([]*resourceCache, len(resources))
		for i, r := range resources {
			var err error
			if caches[i], err = f.cacheOf(ctx, r); err != nil {
				return nil, err
			}
		}
		if snapshots := f.snapshotsOf(caches); snapshots != nil {
			return snapshots, nil
		}
	}
}

// snapshotsOf returns snapshots of resource caches; nil if the records of one are not in memory.
func (f *Feed) snapshotsOf(caches []*resourceCache) []Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	snapshots := make([]Snapshot, len(caches))
	for i, rc := range caches {
		if rc.dropped || !rc.loaded {
			return nil
		}
		rc.markUsed()
		snapshots[i] = *rc.snapshot()
		snapshots[i].revision = f.Revision()
	}
	return snapshots
}

// maxSmallBytes bounds the values in memory that SnapshotSmall may load.
const maxSmallBytes = 128 << 20

// SnapshotSmall is Snapshot for a resource that is small enough to be held for its next reader:
// with it, the values of all resources in memory take at most maxSmallBytes, and at most half
// of Options.StateBytes. For other resources, and for one without objects, it loads nothing and
// returns false, unless their records are in memory already. After a start it waits until the
// sizes are known.
func (f *Feed) SnapshotSmall(ctx context.Context, r sqlstore.Resource) (Snapshot, bool, error) {
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
func (f *Feed) isLoaded(r sqlstore.Resource) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	rc := f.caches[r]
	return rc != nil && rc.loaded
}

// snapshotOf returns a snapshot of a resource cache; false if its records are not in memory.
func (f *Feed) snapshotOf(rc *resourceCache) (Snapshot, bool) {
	f.mu.RLock()
	if rc.cloned != nil && !rc.dropped {
		defer f.mu.RUnlock()
		rc.markUsed()
		s := *rc.cloned
		s.revision = f.Revision()
		return s, true
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc.dropped || !rc.loaded {
		return Snapshot{}, false
	}
	rc.markUsed()
	s := *rc.snapshot()
	s.revision = f.Revision()
	return s, true
}

// Lookup returns one record, or nil if it does not exist, and the feed's revision. It does not
// load the resource: if its records are not in memory, loaded is false and the others are zero.
func (f *Feed) Lookup(key sqlstore.Key) (e *Entry, revision int64, loaded bool) {
	p := probe(key.Namespace, key.Name)
	f.mu.RLock()
	defer f.mu.RUnlock()
	rc := f.caches[key.Of()]
	if rc == nil || !rc.loaded {
		return nil, 0, false
	}
	rc.markUsed()
	e, _ = rc.tree.Get(p)
	return e, f.Revision(), true
}

// cacheOf returns a loaded resource cache. The feed may drop the cache, or unload its
// records, at any time.
func (f *Feed) cacheOf(ctx context.Context, r sqlstore.Resource) (*resourceCache, error) {
	if err := f.awaitStart(ctx); err != nil {
		return nil, err
	}
	for {
		rc, load := f.join(r)
		if rc == nil {
			return nil, ErrClosed
		}
		if err := f.lifecycle.wait(ctx, load.done); err != nil {
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

// join returns the resource cache of r and the loading of its records, which it starts unless
// another reader has. It returns nil if the feed is closed.
func (f *Feed) join(r sqlstore.Resource) (*resourceCache, *loading) {
	f.mu.RLock()
	rc := f.caches[r]
	if rc != nil && rc.load != nil {
		defer f.mu.RUnlock()
		return rc, rc.load
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	rc = f.cacheOfLocked(r)
	if rc.load == nil {
		load := &loading{done: make(chan struct{}), unchanged: rc.changed, from: f.Revision()}
		if !f.spawn(func(ctx context.Context) { f.load(ctx, rc, load) }) {
			return nil, nil
		}
		rc.load = load
	}
	return rc, rc.load
}

// cacheOfLocked returns the resource cache of r, which may be without records.
func (f *Feed) cacheOfLocked(r sqlstore.Resource) *resourceCache {
	rc := f.caches[r]
	if rc == nil {
		rc = newResourceCache(r, f.opts, f.Revision())
		f.caches[r] = rc
	}
	return rc
}

// load reads the records at one revision, and then applies the changes that were made since
// loading began.
func (f *Feed) load(ctx context.Context, rc *resourceCache, load *loading) {
	bytes := 0
	a := f.adopted.Load()
	var objects atomic.Int64
	stop := elapsed.Report(elapsed.After, elapsed.InLog, func(elapsed time.Duration) {
		attributes := []any{"group", rc.resource.Group, "resource", rc.resource.Resource, "objects", objects.Load(), "elapsed", elapsed.Round(time.Second)}
		if usage, known := f.Usage(rc.resource); known {
			attributes = append(attributes, "of", usage.Objects)
		}
		f.opts.Logger.Info("watch: loading objects", attributes...)
	})
	tree := btree.NewG(treeDegree, lessEntry)
	q := sqlstore.Query{Range: sqlstore.Range{Group: rc.resource.Group, Resource: rc.resource.Resource, Owner: rc.resource.Owner}}
	namespaces := map[string]string{}
	listed, err := f.source.List(ctx, q, func(r sqlstore.Record) error {
		// All records share one copy of these strings.
		r.Group, r.Resource = rc.resource.Group, rc.resource.Resource
		if ns, ok := namespaces[r.Namespace]; ok {
			r.Namespace = ns
		} else {
			namespaces[r.Namespace] = r.Namespace
		}
		tree.ReplaceOrInsert(NewEntry(r))
		bytes += len(r.Value)
		objects.Add(1)
		return nil
	})
	switch {
	case err != nil:
	case listed.Revision < load.from:
		// The backlog begins after load.from: the changes between the list's revision and
		// load.from would be missing.
		err = fmt.Errorf("%w: list of revision %d, when %d was applied", sqlstore.ErrUnavailable, listed.Revision, load.from)
	default:
		// The records of a loaded resource cache are those of the feed's revision. So the
		// feed must first apply the changes up to the list's revision. If it adopts
		// another state meanwhile, it drops the cache.
		err = f.awaitApplied(ctx, listed.Revision, a)
	}
	stop()
	f.endLoading(rc, load, err, func() { rc.begin(tree, bytes, listed.Revision) })
}

// endLoading ends a loading. Unless the loading has failed it calls begin, which puts the records
// into the resource cache.
func (f *Feed) endLoading(rc *resourceCache, load *loading, err error, begin func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(load.done)
	switch {
	case rc.dropped:
	case err != nil:
		load.err, rc.load = err, nil
	default:
		begin()
	}
}
