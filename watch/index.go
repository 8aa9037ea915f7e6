package watch

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/google/btree"

	"byre/sqlstore"
)

// Index finds records by a value that each record has, such as the node of a Pod; "" is a value
// too. A caller may replace an Index by another one of the same name while the feed runs. The
// feed holds the values of one Index of each name: the one that was used last.
type Index struct {
	// Name distinguishes the indexes of a resource.
	Name string
	// Value returns the value of a record, always the same for the same record. It
	// returns false if the record alone does not tell the value. The feed calls it once
	// for each entry, of several at the same time, and never while it holds a lock.
	Value func(*Entry) (value string, ok bool)
	// Find returns the value of a record for which Value returns false; nil means that
	// there is no way to find it. The feed calls it once for each such record that exists
	// when the index is built, of several at the same time. It may be slow. A record whose
	// value is unknown matches every value.
	Find func(*Entry) (value string, ok bool)
}

// indexValue is the value of one record in one index. An Entry has one for each name of an
// index; if two indexes have the same name, it is that of the one that was used last. It is
// immutable.
type indexValue struct {
	index *Index
	place
	next *indexValue
}

// place is the place of a record in an index: its value, or that its value is unknown.
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

// cached returns the place that an entry has stored; false if it has stored none.
func (x *Index) cached(e *Entry) (place, bool) {
	for v := e.values.Load(); v != nil; v = v.next {
		if v.index == x {
			return v.place, true
		}
	}
	return place{}, false
}

// locate returns the place of a record, and stores it in the entry. It may call Value, so that
// the caller must not hold state.mu.
func (x *Index) locate(e *Entry) place {
	p, ok := x.cached(e)
	if !ok {
		p = placeOf(x.Value(e))
		x.remember(e, p)
	}
	return p
}

// find is locate, and calls Find for a value that Value does not tell.
func (x *Index) find(e *Entry) {
	if p := x.locate(e); !p.known && x.Find != nil {
		x.remember(e, placeOf(x.Find(e)))
	}
}

// remember stores a place in an entry, instead of that of another index of the same name.
func (x *Index) remember(e *Entry, p place) {
	for {
		before := e.values.Load()
		if e.values.CompareAndSwap(before, &indexValue{x, p, before.without(x.Name)}) {
			return
		}
	}
}

// without returns the list v without the value of the index of a name.
func (v *indexValue) without(name string) *indexValue {
	switch {
	case v == nil:
		return nil
	case v.index.Name == name:
		return v.next
	}
	return &indexValue{v.index, v.place, v.next.without(name)}
}

// indexed is one record in an index. Records whose value is unknown come first.
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

// indexTree is one index of a resource cache. Once it is part of the resource cache, state.mu
// guards it.
type indexTree struct {
	*Index
	tree *btree.BTreeG[indexed]
	// places has the place of each record in the tree.
	places map[*Entry]place
}

// newIndexTree makes an index of the records of a snapshot. It returns nil if ctx ends meanwhile.
func newIndexTree(ctx context.Context, index *Index, s Snapshot) *indexTree {
	t := &indexTree{Index: index, tree: btree.NewG(treeDegree, lessIndexed), places: make(map[*Entry]place, s.Len())}
	entries := slices.Collect(s.All("", nil))
	var readers sync.WaitGroup
	for part := range slices.Chunk(entries, len(entries)/runtime.GOMAXPROCS(0)+1) {
		readers.Go(func() {
			for _, e := range part {
				if ctx.Err() != nil {
					return
				}
				index.find(e)
			}
		})
	}
	readers.Wait()
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil
		}
		t.insert(e, index.locate(e))
	}
	return t
}

func (t *indexTree) insert(e *Entry, p place) {
	t.places[e] = p
	t.tree.ReplaceOrInsert(indexed{p, e})
}

// apply applies one event. It does not call Value: a record whose value was not computed before
// matches every value.
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

// MatchValue selects the records that have one value of an index.
type MatchValue struct {
	Index *Index
	Value string
}

// mayMatch returns false if the record certainly does not have the value. The caller must not
// hold state.mu.
func (m MatchValue) mayMatch(e *Entry) bool {
	if e == nil {
		return false
	}
	p := m.Index.locate(e)
	return !p.known || p.value == m.Value
}

// SnapshotIndexed returns a Snapshot that has an index, unless index is nil; see Snapshot.Indexed.
// The first call with an index builds the index. The feed maintains it until a call with another
// index of the same name. The errors are those of Snapshot.
func (s *state) SnapshotIndexed(ctx context.Context, r sqlstore.Resource, index *Index) (Snapshot, error) {
	for {
		rc, err := s.cacheOf(ctx, r)
		if err != nil {
			return Snapshot{}, err
		}
		snapshot, ok := s.snapshotOf(rc)
		if !ok {
			continue
		}
		if index == nil || snapshot.Has(index) {
			return snapshot, nil
		}
		built := s.joinBuild(rc, index)
		if built == nil {
			return Snapshot{}, ErrClosed
		}
		if err := s.lifecycle.wait(ctx, built); err != nil {
			return Snapshot{}, err
		}
	}
}

// joinBuild returns a channel that is closed when an index has been built, and starts to
// build it unless a build is in flight. It returns nil if the feed is closed.
func (s *state) joinBuild(rc *resourceCache, index *Index) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if built := rc.builds[index]; built != nil {
		return built
	}
	built := make(chan struct{})
	if !s.lifecycle.spawn(func(ctx context.Context) {
		defer close(built)
		s.build(ctx, rc, index)
	}) {
		return nil
	}
	rc.builds[index] = built
	return built
}

// build makes an index of a snapshot, and then applies the later changes to it. It does not hold
// state.mu while it computes the values of the snapshot's records. prepare computes the values of
// later changes before the feed applies them.
func (s *state) build(ctx context.Context, rc *resourceCache, index *Index) {
	for ctx.Err() == nil {
		snapshot, ok := s.snapshotOf(rc)
		if !ok {
			break
		}
		t := newIndexTree(ctx, index, snapshot)
		if t != nil && s.install(rc, t, snapshot.revision) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(rc.builds, index)
}

// install applies the events after a revision to an index, and makes it part of the resource
// cache. It returns false if those events are not in memory.
func (s *state) install(rc *resourceCache, t *indexTree, revision int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rc.dropped || !rc.loaded || rc.ring.since > revision {
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
