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

// Keep keeps a snapshot for SnapshotAt, so that the later pages of a list are read from memory
// although the resource changes. The feed drops it after the lifetime, with the records of the
// resource, and when kept snapshots hold too much memory. Upstream's watch cache keeps a
// snapshot for each event in its window (k8s.io/apiserver/pkg/storage/cacher/store).
func (s *state) Keep(snapshot Snapshot, lifetime time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rc := snapshot.cache; rc.loaded && !rc.dropped {
		s.kept.add(snapshot, time.Now().Add(lifetime))
	}
}

// SnapshotAt returns the snapshot of a resource at a revision, if it is in memory: because the
// resource has not changed since, or because the snapshot is kept. It may lack any index.
func (s *state) SnapshotAt(r sqlstore.Resource, revision int64) (Snapshot, bool) {
	s.mu.RLock()
	rc := s.caches[r]
	s.mu.RUnlock()
	if rc == nil {
		return Snapshot{}, false
	}
	snapshot, ok := s.snapshotOf(rc)
	if !ok || snapshot.since > revision {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if snapshot, ok = s.kept.find(rc, revision); !ok {
			return Snapshot{}, false
		}
	}
	snapshot.revision = revision
	return snapshot, true
}

// keptSnapshots are the snapshots that somebody may ask for by their revision (state.Keep).
// state.mu guards them.
type keptSnapshots struct {
	// byCache has those of each resource cache that has any, in the order of their revisions.
	byCache map[*resourceCache][]*keptSnapshot
	// bytes is the sum of keptSnapshot.bytes.
	bytes int
}

type keptSnapshot struct {
	Snapshot
	expires time.Time
	// bytes is about the memory that this snapshot holds, and neither a later one of its
	// resource nor the current records do.
	bytes int
}

func (k *keptSnapshots) add(s Snapshot, expires time.Time) {
	kept := k.byCache[s.cache]
	i := firstAfter(kept, s.revision)
	if i > 0 && kept[i-1].since == s.since {
		same := kept[i-1]
		same.revision, same.expires = max(same.revision, s.revision), expires
		return
	}
	k.byCache[s.cache] = slices.Insert(kept, i, &keptSnapshot{Snapshot: s, expires: expires})
	if len(kept) == maxKept {
		k.drop(s.cache, 1)
	}
}

// find returns the snapshot of a resource at a revision.
func (k *keptSnapshots) find(rc *resourceCache, revision int64) (Snapshot, bool) {
	kept := k.byCache[rc]
	i := firstAfter(kept, revision)
	if i == 0 || kept[i-1].revision < revision {
		return Snapshot{}, false
	}
	return kept[i-1].Snapshot, true
}

// firstAfter returns the index of the first snapshot that begins after a revision.
func firstAfter(kept []*keptSnapshot, revision int64) int {
	return sort.Search(len(kept), func(i int) bool { return kept[i].since > revision })
}

// charge counts the memory of what an event replaces, which the last snapshot still holds. Earlier
// snapshots may hold it too; they are dropped first. While all snapshots hold too much, it drops
// the oldest one of the resource whose snapshots hold most.
func (k *keptSnapshots) charge(rc *resourceCache, ev Event) {
	kept := k.byCache[rc]
	n := len(kept)
	if n == 0 || ev.Old != nil && ev.Old.Revision > kept[n-1].revision {
		return
	}
	cost := keptNodeBytes + int(ev.oldBytes)
	kept[n-1].bytes += cost
	for k.bytes += cost; k.bytes > maxKeptBytes; {
		var largest *resourceCache
		most := 0
		for rc, kept := range k.byCache {
			total := 0
			for _, s := range kept {
				total += s.bytes
			}
			if total > most {
				largest, most = rc, total
			}
		}
		k.drop(largest, 1)
	}
}

// drop drops the first n snapshots of a resource cache, or all if it has fewer.
func (k *keptSnapshots) drop(rc *resourceCache, n int) {
	k.dropIf(rc, func(*keptSnapshot) bool {
		n--
		return n >= 0
	})
}

// dropExpired drops the snapshots whose lifetime is over.
func (k *keptSnapshots) dropExpired(now time.Time) {
	for rc := range k.byCache {
		k.dropIf(rc, func(s *keptSnapshot) bool { return !s.expires.After(now) })
	}
}

func (k *keptSnapshots) dropIf(rc *resourceCache, isOver func(*keptSnapshot) bool) {
	kept := slices.DeleteFunc(k.byCache[rc], func(s *keptSnapshot) bool {
		over := isOver(s)
		if over {
			k.bytes -= s.bytes
		}
		return over
	})
	if k.byCache[rc] = kept; len(kept) == 0 {
		delete(k.byCache, rc)
	}
}
