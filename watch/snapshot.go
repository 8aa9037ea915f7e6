package watch

import (
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Snapshot shows the records of one resource at one revision. It is immutable and safe for
// concurrent use. Who holds it keeps its records in memory.
type Snapshot struct {
	revision int64
	since    int64
	cache    *resourceCache
	tree     *btree.BTreeG[*Entry]
	indexes  map[string]indexSnapshot // by name; immutable
}

type indexSnapshot struct {
	index *Index
	tree  *btree.BTreeG[indexed]
}

// Revision returns the revision of the snapshot.
func (s Snapshot) Revision() int64 { return s.revision }

// Same reports whether two snapshots of one resource have the same records, because nothing has
// changed between them. It does not compare records.
func (s Snapshot) Same(other Snapshot) bool { return s.tree == other.tree }

// Since returns a revision since which the resource has not changed, up to Revision: the
// earliest one that the feed knows.
func (s Snapshot) Since() int64 { return s.since }

// Len returns the number of records in all namespaces.
func (s Snapshot) Len() int { return s.tree.Len() }

// Get returns the record with a namespace and name; nil if there is none.
func (s Snapshot) Get(namespace, name string) *Entry {
	e, _ := s.tree.Get(probe(namespace, name))
	return e
}

// All yields the records of one namespace, or of all if namespace is empty, in key order. Unless
// after is nil, it yields only records after that position.
func (s Snapshot) All(namespace string, after *sqlstore.Position) iter.Seq[*Entry] {
	start := startOf(namespace, after)
	return func(yield func(*Entry) bool) {
		s.tree.AscendGreaterOrEqual(start, func(e *Entry) bool {
			if namespace != "" && e.Namespace != namespace {
				return false
			}
			return yield(e)
		})
	}
}

// Namespaces yields the namespaces that have records, in order. It examines one record of each.
func (s Snapshot) Namespaces() iter.Seq[string] {
	return func(yield func(string) bool) {
		for start := probe("", ""); ; {
			var first *Entry
			s.tree.AscendGreaterOrEqual(start, func(e *Entry) bool {
				first = e
				return false
			})
			if first == nil || !yield(first.Namespace) {
				return
			}
			start = probe(first.Namespace+"\x00", "")
		}
	}
}

// startOf returns an entry with the first key of an iteration over a namespace.
func startOf(namespace string, after *sqlstore.Position) *Entry {
	if after != nil && (after.Namespace > namespace || after.Namespace == namespace) {
		// No name ends in a NUL, so this is the first key after the position.
		return probe(after.Namespace, after.Name+"\x00")
	}
	return probe(namespace, "")
}

// Indexed is All for the records that have a value of an index, or may have it because their
// value is unknown. It does not iterate over other records. The snapshot must have
// the index.
func (s Snapshot) Indexed(n MatchValue, namespace string, after *sqlstore.Position) iter.Seq[*Entry] {
	tree, start := s.indexes[n.Index.Name].tree, startOf(namespace, after)
	at := func(p place) iter.Seq[*Entry] {
		return func(yield func(*Entry) bool) {
			tree.AscendGreaterOrEqual(indexed{p, start}, func(i indexed) bool {
				return i.place == p && (namespace == "" || i.entry.Namespace == namespace) && yield(i.entry)
			})
		}
	}
	return merge(at(place{true, n.Value}), at(place{}))
}

// merge yields the entries of two sequences in key order. The second sequence is usually
// empty.
func merge(a, b iter.Seq[*Entry]) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		waiting := slices.Collect(b)
		for e := range a {
			for ; len(waiting) > 0 && lessEntry(waiting[0], e); waiting = waiting[1:] {
				if !yield(waiting[0]) {
					return
				}
			}
			if !yield(e) {
				return
			}
		}
		slices.Values(waiting)(yield)
	}
}

// Has reports whether the snapshot has an index.
func (s Snapshot) Has(index *Index) bool { return s.indexes[index.Name].index == index }

// probe returns an entry with which a tree is searched.
func probe(namespace, name string) *Entry {
	return &Entry{Record: sqlstore.Record{Key: sqlstore.Key{Namespace: namespace, Name: name}}}
}

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
