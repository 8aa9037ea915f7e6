package watch

import (
	"iter"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Snapshot is one resource as it was at one revision. It is immutable, and
// safe for concurrent use; holding it keeps the records it shows in memory.
type Snapshot struct {
	revision int64
	since    int64
	tree     *btree.BTreeG[*Entry]
	indexes  map[string]indexSnapshot // by name; immutable
}

type indexSnapshot struct {
	index *Index
	tree  *btree.BTreeG[indexed]
}

// Revision is the revision that the snapshot shows.
func (s Snapshot) Revision() int64 { return s.revision }

// Same reports whether two snapshots of one resource have the same state: nothing has
// changed between them. It does not look at records.
func (s Snapshot) Same(other Snapshot) bool { return s.tree == other.tree }

// Since is the earliest revision for which it is known that the resource was
// the same then as it is at Revision.
func (s Snapshot) Since() int64 { return s.since }

// Len is the number of records in all namespaces.
func (s Snapshot) Len() int { return s.tree.Len() }

// Get returns the record of a name, or nil.
func (s Snapshot) Get(namespace, name string) *Entry {
	e, _ := s.tree.Get(probe(namespace, name))
	return e
}

// All yields the records of one namespace, or of all namespaces if it is empty, in key
// order. If after is not nil, it begins behind that position.
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

// startOf is where a walk over a namespace begins.
func startOf(namespace string, after *sqlstore.Position) *Entry {
	if after != nil && (after.Namespace > namespace || after.Namespace == namespace) {
		// No name ends in a NUL, so this is the first key after the position.
		return probe(after.Namespace, after.Name+"\x00")
	}
	return probe(namespace, "")
}

// Indexed is All for the records that have a value of an index, or may have it. It does
// not look at other records. The snapshot must come from Feed.SnapshotIndexed with that
// index.
func (s Snapshot) Indexed(n Narrowing, namespace string, after *sqlstore.Position) iter.Seq[*Entry] {
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
		next, stop := iter.Pull(b)
		defer stop()
		waiting, ok := next()
		for e := range a {
			for ok && lessEntry(waiting, e) {
				if !yield(waiting) {
					return
				}
				waiting, ok = next()
			}
			if !yield(e) {
				return
			}
		}
		for ; ok; waiting, ok = next() {
			if !yield(waiting) {
				return
			}
		}
	}
}

// has reports whether the snapshot has an index.
func (s Snapshot) has(index *Index) bool { return s.indexes[index.Name].index == index }

func probe(namespace, name string) *Entry {
	return &Entry{Record: sqlstore.Record{Key: sqlstore.Key{Namespace: namespace, Name: name}}}
}
