package watch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Snapshot returns the records of a resource at the feed's revision. The first call for a
// resource loads it. It fails with ErrClosed, with the context's error, and with the errors of
// the store's List.
func (s *state) Snapshot(ctx context.Context, r sqlstore.Resource) (Snapshot, error) {
	return s.SnapshotIndexed(ctx, r, nil)
}

// Snapshots returns snapshots of resources, all of one revision: the feed's after they were loaded. The
// errors are those of Snapshot.
func (s *state) Snapshots(ctx context.Context, resources ...sqlstore.Resource) ([]Snapshot, error) {
	for {
		caches := make([]*resourceCache, len(resources))
		for i, r := range resources {
			var err error
			if caches[i], err = s.cacheOf(ctx, r); err != nil {
				return nil, err
			}
		}
		if snapshots := s.snapshotsOf(caches); snapshots != nil {
			return snapshots, nil
		}
	}
}

// snapshotsOf returns snapshots of resource caches; nil if the records of one are not in memory.
func (s *state) snapshotsOf(caches []*resourceCache) []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshots := make([]Snapshot, len(caches))
	for i, rc := range caches {
		var ok bool
		if snapshots[i], ok = rc.snapshot(s.progress.Revision()); !ok {
			return nil
		}
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
func (s *state) SnapshotSmall(ctx context.Context, r sqlstore.Resource) (Snapshot, bool, error) {
	most := maxSmallBytes
	if s.opts.StateBytes > 0 {
		most = min(most, s.opts.StateBytes/2)
	}
	s.mu.RLock()
	rc := s.caches[r]
	isLoaded := rc != nil && rc.loaded
	s.mu.RUnlock()
	if !isLoaded {
		usage, err := s.usages.WaitForUsage(ctx, r)
		if _, bytes := s.size(); err != nil || usage.Objects == 0 || usage.Bytes > int64(most-bytes) {
			return Snapshot{}, false, err
		}
	}
	snapshot, err := s.Snapshot(ctx, r)
	return snapshot, err == nil, err
}

// snapshotOf returns a snapshot of a resource cache; false if its records are not in memory.
func (s *state) snapshotOf(rc *resourceCache) (Snapshot, bool) {
	s.mu.RLock()
	if rc.cloned != nil { // then rc.snapshot changes nothing
		defer s.mu.RUnlock()
		return rc.snapshot(s.progress.Revision())
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return rc.snapshot(s.progress.Revision())
}

// Lookup returns one record, or nil if it does not exist, and the feed's revision. It does not
// load the resource: if its records are not in memory, loaded is false and the others are zero.
func (s *state) Lookup(key sqlstore.Key) (e *Entry, revision int64, loaded bool) {
	p := probe(key.Namespace, key.Name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	rc := s.caches[key.Of()]
	if rc == nil || !rc.loaded {
		return nil, 0, false
	}
	rc.markUsed()
	e, _ = rc.tree.Get(p)
	return e, s.progress.Revision(), true
}

// IsLoaded reports whether the records of a resource are in memory.
func (s *state) IsLoaded(r sqlstore.Resource) bool {
	_, _, loaded := s.Lookup(sqlstore.Key{Owner: r.Owner, Group: r.Group, Resource: r.Resource})
	return loaded
}

// cacheOf returns a resource cache that was loaded. The feed may drop the cache, or unload its
// records, at any time: the caller then calls it again.
func (s *state) cacheOf(ctx context.Context, r sqlstore.Resource) (*resourceCache, error) {
	if err := s.lifecycle.awaitStart(ctx); err != nil {
		return nil, err
	}
	rc, load := s.join(r)
	if rc == nil {
		return nil, ErrClosed
	}
	if err := s.lifecycle.wait(ctx, load.done); err != nil {
		return nil, err
	}
	return rc, load.err
}

// join returns the resource cache of r and the loading of its records, which it starts unless
// another reader has. It returns nil if the feed is closed.
func (s *state) join(r sqlstore.Resource) (*resourceCache, *loading) {
	s.mu.RLock()
	rc := s.caches[r]
	if rc != nil && rc.load != nil {
		defer s.mu.RUnlock()
		return rc, rc.load
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	rc = s.cacheOfLocked(r)
	if rc.load == nil {
		load := &loading{done: make(chan struct{}), unchanged: rc.changed, from: s.progress.Revision()}
		if !s.lifecycle.spawn(func(ctx context.Context) { s.load(ctx, rc, load) }) {
			return nil, nil
		}
		rc.load = load
	}
	return rc, rc.load
}

// cacheOfLocked returns the resource cache of r, which may be without records. The caller holds mu.
func (s *state) cacheOfLocked(r sqlstore.Resource) *resourceCache {
	rc := s.caches[r]
	if rc == nil {
		rc = newResourceCache(r, s.opts, s.progress.Revision())
		s.caches[r] = rc
	}
	return rc
}

// load reads the records at one revision, and then applies the changes that were made since
// loading began.
func (s *state) load(ctx context.Context, rc *resourceCache, load *loading) {
	bytes := 0
	a := s.progress.generation.Load()
	var objects atomic.Int64
	stop := sqlstore.ReportElapsed(sqlstore.ReportAfter, sqlstore.ReportInLog, func(elapsed time.Duration) {
		attributes := []any{"group", rc.resource.Group, "resource", rc.resource.Resource, "objects", objects.Load(), "elapsed", elapsed.Round(time.Second)}
		if usage, known := s.usages.Usage(rc.resource); known {
			attributes = append(attributes, "of", usage.Objects)
		}
		s.opts.Logger.Info("watch: loading objects", attributes...)
	})
	tree := btree.NewG(treeDegree, lessEntry)
	q := sqlstore.Query{Range: sqlstore.Range{Group: rc.resource.Group, Resource: rc.resource.Resource, Owner: rc.resource.Owner}}
	namespaces := map[string]string{}
	listed, err := s.source.List(ctx, q, func(r sqlstore.Record) error {
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
		// feed must first apply the changes up to the list's revision. If it takes over
		// another state meanwhile, it drops the cache.
		err = s.progress.awaitApplied(ctx, listed.Revision, a)
	}
	stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(load.done)
	switch {
	case rc.dropped:
	case err != nil:
		load.err, rc.load = err, nil
	default:
		rc.begin(tree, bytes, listed.Revision)
	}
}
