package watch

import (
	"iter"
	"slices"

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
