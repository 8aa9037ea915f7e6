package watch

import (
	"context"

	"github.com/google/btree"
)

// Index finds records by something other than their key: one value for each record ("" is
// a value too). A caller may use another Index of the same name while the feed runs. Of
// two indexes of one resource and one name, the feed keeps the values of the one that was
// used last.
type Index struct {
	// Name tells the indexes of a resource apart.
	Name string
	// Value returns the value of a record, always the same for the same record. It
	// returns false if the record alone does not tell the value. The feed calls it once
	// for each entry, and never with its lock held.
	Value func(*Entry) (value string, ok bool)
	// Find returns the value of a record for which Value returns false. The feed calls it
	// once for each such record that exists when the index is built. It may be slow; nil
	// means that there is no other way. A record without a known value is found by every
	// value.
	Find func(*Entry) (value string, ok bool)
}

// indexValue is the value of one record in one index. An Entry keeps one for each name of
// an index: of two indexes of one name, that of the one that was used last. It is
// immutable.
type indexValue struct {
	index *Index
	place
	next *indexValue
}

// place is a value, if it is known.
type place struct {
	known bool
	value string
}

func placeOf(value string, known bool) place {
	if !known {
		return place{}
	}
	return place{true, value}
}

// cached returns the value that an entry keeps; false if it keeps none.
func (x *Index) cached(e *Entry) (place, bool) {
	for v := e.values.Load(); v != nil; v = v.next {
		if v.index == x {
			return v.place, true
		}
	}
	return place{}, false
}

// of returns the value of a record, and keeps it in the entry. It may look into the
// record, so the caller must not hold Feed.mu.
func (x *Index) of(e *Entry) place {
	p, ok := x.cached(e)
	if !ok {
		p = placeOf(x.Value(e))
		x.remember(e, p)
	}
	return p
}

func (x *Index) remember(e *Entry, p place) {
	for {
		before := e.values.Load()
		if e.values.CompareAndSwap(before, &indexValue{x, p, before.without(x.Name)}) {
			return
		}
	}
}

// without leaves out the value of an index's name.
func (v *indexValue) without(name string) *indexValue {
	switch {
	case v == nil:
		return nil
	case v.index.Name == name:
		return v.next
	}
	return &indexValue{v.index, v.place, v.next.without(name)}
}

// indexed is one record in an index: those without a known value come first.
type indexed struct {
	place
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

// indexTree is one index of a resource cache, guarded as the resource cache is once it is part of it.
type indexTree struct {
	*Index
	tree *btree.BTreeG[indexed]
	// places is where each record is in the tree.
	places map[*Entry]place
}

// newIndexTree indexes a snapshot; it returns nil when ctx ends meanwhile.
func newIndexTree(ctx context.Context, index *Index, s Snapshot) *indexTree {
	t := &indexTree{Index: index, tree: btree.NewG(treeDegree, lessIndexed), places: make(map[*Entry]place, s.Len())}
	for e := range s.All("", nil) {
		if ctx.Err() != nil {
			return nil
		}
		p := index.of(e)
		if !p.known && index.Find != nil {
			if p = placeOf(index.Find(e)); p.known {
				index.remember(e, p)
			}
		}
		t.insert(e, p)
	}
	return t
}

func (t *indexTree) insert(e *Entry, p place) {
	t.places[e] = p
	t.tree.ReplaceOrInsert(indexed{p, e})
}

// apply applies one event. It does not look into a record: a record whose value was not
// computed yet is found by every value.
func (t *indexTree) apply(ev Event) {
	if ev.Old != nil {
		t.tree.Delete(indexed{t.places[ev.Old], ev.Old})
		delete(t.places, ev.Old)
	}
	if ev.New != nil {
		p, _ := t.cached(ev.New)
		t.insert(ev.New, p)
	}
}

// Narrowing is one value of an index.
type Narrowing struct {
	Index *Index
	Value string
}

// may returns false if the record certainly does not have the value. The caller must not
// hold Feed.mu.
func (n Narrowing) may(e *Entry) bool {
	if e == nil {
		return false
	}
	p := n.Index.of(e)
	return !p.known || p.value == n.Value
}

// SnapshotIndexed is Snapshot with an index. The first call with an index builds it. The
// feed keeps it until a call with another index of the same name.
func (f *Feed) SnapshotIndexed(ctx context.Context, r Resource, index *Index) (Snapshot, error) {
	for {
		rc, err := f.cacheOf(ctx, r)
		if err != nil {
			return Snapshot{}, err
		}
		s, ok := f.snapshotOf(rc)
		if !ok {
			continue
		}
		if s.has(index) {
			return s, nil
		}
		built := f.joinBuild(rc, index)
		if built == nil {
			return Snapshot{}, ErrClosed
		}
		if err := f.wait(ctx, built); err != nil {
			return Snapshot{}, err
		}
	}
}

// joinBuild returns a channel that is closed when an index has been built, and starts to
// build it unless a build is in flight. It returns nil if the feed is closed.
func (f *Feed) joinBuild(rc *resourceCache, index *Index) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if built := rc.builds[index]; built != nil {
		return built
	}
	if f.closed {
		return nil
	}
	built := make(chan struct{})
	rc.builds[index] = built
	f.group.Go(func() {
		defer close(built)
		f.build(rc, index)
	})
	return built
}

// build makes an index of a snapshot, and then applies what has changed since. It looks
// into records without the lock. The values of later changes are computed before the
// changes are applied (prepare).
func (f *Feed) build(rc *resourceCache, index *Index) {
	for f.running.Err() == nil {
		s, ok := f.snapshotOf(rc)
		if !ok {
			break
		}
		t := newIndexTree(f.running, index, s)
		if t != nil && f.install(rc, t, s.revision) {
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(rc.builds, index)
}

// install brings an index from a revision to the feed's and makes it part of
// the resource cache. It returns false when the changes between are not in memory.
func (f *Feed) install(rc *resourceCache, t *indexTree, revision int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rc.gone || !rc.loaded || rc.ring.since > revision {
		return false
	}
	for i := rc.ring.first(revision); i < rc.ring.size; i++ {
		t.apply(*rc.ring.at(i))
	}
	rc.indexes[t.Name] = t
	rc.cloned = nil
	delete(rc.builds, t.Index)
	return true
}
