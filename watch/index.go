package watch

import "github.com/google/btree"

// Index says what a resource's records can be found by besides their key: one
// value a record ("" is a value too). It belongs to whoever asks by it, so that
// what is looked for may change while the feed runs: of two of one resource and
// one name, the feed keeps what the one asked by last has found.
type Index struct {
	// Name tells the indexes of a resource apart.
	Name string
	// Value returns the value of a record. It is false where that can't be told
	// from the record alone, and always the same for the same record. It is
	// called under the feed's lock: it must be quick and must not call the feed.
	Value func(*Entry) (value string, ok bool)
	// Find is asked once for each record that Value can't tell of and that is
	// there when the index is built. It may take its time; nil means that nobody
	// knows. What stays unknown is found by every value.
	Find func(*Entry) (value string, ok bool)
}

// indexed is a place in an index: the records without a known value come first.
type indexed struct {
	known bool
	value string
	entry *Entry
}

func lessIndexed(a, b indexed) bool {
	switch {
	case a.known != b.known:
		return b.known
	case a.value != b.value:
		return a.value < b.value
	default:
		return lessEntry(a.entry, b.entry)
	}
}

// indexTree is one index of a hub, guarded as the hub is.
type indexTree struct {
	*Index
	tree *btree.BTreeG[indexed]
	// found has what Find said of the records that are in the tree.
	found map[*Entry]string
}

// newIndexTree indexes a tree; found is what Find said of some of its records.
func newIndexTree(index *Index, entries *btree.BTreeG[*Entry], found map[*Entry]string) *indexTree {
	t := &indexTree{Index: index, tree: btree.NewG(treeDegree, lessIndexed), found: map[*Entry]string{}}
	entries.Ascend(func(e *Entry) bool {
		if value, ok := found[e]; ok {
			t.found[e] = value
		}
		t.tree.ReplaceOrInsert(t.place(e))
		return true
	})
	return t
}

func (t *indexTree) place(e *Entry) indexed {
	value, known := t.Value(e)
	if !known {
		value, known = t.found[e]
	}
	return indexed{known, value, e}
}

func (t *indexTree) apply(ev Event) {
	if ev.Old != nil {
		t.tree.Delete(t.place(ev.Old))
		delete(t.found, ev.Old)
	}
	if ev.New != nil {
		t.tree.ReplaceOrInsert(t.place(ev.New))
	}
}

// find asks about the records of a snapshot whose value can't be told.
func (x *Index) find(s Snapshot) map[*Entry]string {
	found := map[*Entry]string{}
	if x.Find == nil {
		return found
	}
	for e := range s.All("", nil) {
		if _, ok := x.Value(e); ok {
			continue
		}
		if value, ok := x.Find(e); ok {
			found[e] = value
		}
	}
	return found
}

// Narrowing is one value of an index.
type Narrowing struct {
	Index *Index
	Value string
}

// may says whether a record has the value, as far as it can be told.
func (n Narrowing) may(e *Entry) bool {
	if e == nil {
		return false
	}
	value, known := n.Index.Value(e)
	return !known || value == n.Value
}
