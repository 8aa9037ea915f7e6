package watch

import (
	"slices"
	"sort"
	"time"

	"byre/sqlstore"
)

// maxKept bounds the kept snapshots of one resource, and maxKeptBytes the memory that only
// kept snapshots hold, of all resources together.
const (
	maxKept      = 128
	maxKeptBytes = 32 << 20
)

// keptNodeBytes is about the memory of the tree nodes that one change of a resource copies.
const keptNodeBytes = 1 << 10

// keptSnapshot is a snapshot that somebody may ask for by its revision (Feed.Keep).
type keptSnapshot struct {
	Snapshot
	expires time.Time
	// bytes is about the memory that this snapshot holds, and neither a later one of its
	// resource nor the current records do.
	bytes int
}

// Keep keeps a snapshot for SnapshotAt, so that the later pages of a list are read from memory
// although the resource changes. The feed drops it after the lifetime, with the records of the
// resource, and when kept snapshots hold too much memory. Upstream's watch cache keeps a
// snapshot for each event in its window (k8s.io/apiserver/pkg/storage/cacher/store).
func (f *Feed) Keep(s Snapshot, lifetime time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rc := s.cache
	if rc.dropped || !rc.loaded {
		return
	}
	expires := time.Now().Add(lifetime)
	i := rc.keptAfter(s.revision)
	if i > 0 && rc.kept[i-1].since == s.since {
		k := rc.kept[i-1]
		k.revision, k.expires = max(k.revision, s.revision), expires
		return
	}
	rc.kept = slices.Insert(rc.kept, i, &keptSnapshot{Snapshot: s, expires: expires})
	if len(rc.kept) > maxKept {
		f.dropKept(rc, 1)
	}
}

// SnapshotAt returns the snapshot of a resource at a revision, if it is in memory: because the
// resource has not changed since, or because the snapshot is kept. It may lack any index.
func (f *Feed) SnapshotAt(r sqlstore.Resource, revision int64) (Snapshot, bool) {
	f.mu.RLock()
	rc := f.caches[r]
	f.mu.RUnlock()
	if rc == nil {
		return Snapshot{}, false
	}
	s, ok := f.snapshotOf(rc)
	if !ok || s.since > revision {
		f.mu.RLock()
		defer f.mu.RUnlock()
		i := rc.keptAfter(revision)
		if i == 0 || rc.kept[i-1].revision < revision {
			return Snapshot{}, false
		}
		s = rc.kept[i-1].Snapshot
	}
	s.revision = revision
	return s, true
}

// keptAfter returns the index of the first kept snapshot that begins after a revision.
func (rc *resourceCache) keptAfter(revision int64) int {
	return sort.Search(len(rc.kept), func(i int) bool { return rc.kept[i].since > revision })
}

// chargeKept counts the memory of what an event replaces, which the last kept snapshot still
// holds. Earlier snapshots may hold it too; they are dropped first. While all kept snapshots
// hold too much, it drops the oldest one of the resource whose snapshots hold most.
func (f *Feed) chargeKept(rc *resourceCache, ev Event) {
	n := len(rc.kept)
	if n == 0 || ev.Old != nil && ev.Old.Revision > rc.kept[n-1].revision {
		return
	}
	cost := keptNodeBytes + int(ev.oldBytes)
	rc.kept[n-1].bytes += cost
	for f.keptBytes += cost; f.keptBytes > maxKeptBytes; {
		largest := rc
		for _, other := range f.caches {
			if other.keptBytes() > largest.keptBytes() {
				largest = other
			}
		}
		f.dropKept(largest, 1)
	}
}

func (rc *resourceCache) keptBytes() (total int) {
	for _, k := range rc.kept {
		total += k.bytes
	}
	return total
}

// dropKept drops the first n kept snapshots of a resource.
func (f *Feed) dropKept(rc *resourceCache, n int) {
	for _, k := range rc.kept[:n] {
		f.keptBytes -= k.bytes
	}
	rc.kept = slices.Delete(rc.kept, 0, n)
}

// dropExpired drops the kept snapshots of a resource whose lifetime is over.
func (f *Feed) dropExpired(rc *resourceCache, now time.Time) {
	rc.kept = slices.DeleteFunc(rc.kept, func(k *keptSnapshot) bool {
		if k.expires.After(now) {
			return false
		}
		f.keptBytes -= k.bytes
		return true
	})
}
