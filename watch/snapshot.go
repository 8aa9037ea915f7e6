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
	index    *btree.BTreeG[indexed] // nil where no index was asked for
}

type indexed struct {
	value string
	entry *Entry
}

func lessIndexed(a, b indexed) bool {
	if a.value != b.value {
		return a.value < b.value
	}
	return lessEntry(a.entry, b.entry)
}

// Revision is the revision that the snapshot shows.
func (s Snapshot) Revision() int64 { return s.revision }

// Same tells, without looking at records, whether two snapshots of one resource
// are of one state: nothing has changed between them.
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

// All gives the records of one namespace, or of all when it is empty, in key
// order, leaving out everything up to after where that is not nil.
func (s Snapshot) All(namespace string, after *sqlstore.Position) iter.Seq[*Entry] {
	start := probe(namespace, "")
	if after != nil && (after.Namespace > namespace || after.Namespace == namespace) {
		// No name ends in a NUL, so this is the first key after the position.
		start = probe(after.Namespace, after.Name+"\x00")
	}
	return func(yield func(*Entry) bool) {
		s.tree.AscendGreaterOrEqual(start, func(e *Entry) bool {
			if namespace != "" && e.Namespace != namespace {
				return false
			}
			return yield(e)
		})
	}
}

// Indexed gives the records of one index value, in key order. It may only be
// asked of a snapshot got by Feed.SnapshotIndexed.
func (s Snapshot) Indexed(value string) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		s.index.AscendGreaterOrEqual(indexed{value, probe("", "")}, func(i indexed) bool {
			return i.value == value && yield(i.entry)
		})
	}
}

func probe(namespace, name string) *Entry {
	return &Entry{Record: sqlstore.Record{Key: sqlstore.Key{Namespace: namespace, Name: name}}}
}
