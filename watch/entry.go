package watch

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/btree"
	"github.com/klauspost/compress/s2"

	"byre/sqlstore"
)

// Entry is one record in memory, with its representations and its index values. The record
// is immutable. The method Value returns its value; Record.Value is nil.
type Entry struct {
	sqlstore.Record
	// Representations are the forms in which readers have shown the record.
	Representations RepresentationSet
	value           atomic.Pointer[value]
	attributes      atomic.Pointer[sqlstore.Attributes]
	values          atomic.Pointer[indexValue]
}

// NewEntry makes an entry of a record. Readers call it for a record that they have read from
// the store.
func NewEntry(r sqlstore.Record) *Entry {
	e := &Entry{Record: r}
	e.Record.Value = nil
	if r.Value != nil {
		e.value.Store(&value{held: r.Value, size: len(r.Value)})
	}
	return e
}

// Attributes returns the attributes that SetAttributes has set last, or else those of the
// Write that made the record; nil if there are none.
func (e *Entry) Attributes() *sqlstore.Attributes { return e.attributes.Load() }

// SetAttributes stores the attributes that a reader has computed from the record in the
// entry. The last call counts.
func (e *Entry) SetAttributes(a *sqlstore.Attributes) { e.attributes.Store(a) }

// lessEntry orders the entries of one resource by their keys.
func lessEntry(a, b *Entry) bool {
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// Event is one change of one record. All watchers get the same entries, so that each
// representation of a record is made once.
type Event struct {
	// Revision is the revision of the change.
	Revision int64
	// New is the state that the change wrote; nil for a delete.
	New *Entry
	// Old is the state that the change replaced; nil for a create. Its Value is nil if
	// this process made the change and the records of the resource are not in memory.
	Old *Entry
	// oldBytes is the length of the value that the change replaced, also if Old has no
	// Value.
	oldBytes int64
}

// Key returns the key of the record that changed.
func (ev Event) Key() sqlstore.Key {
	if ev.New != nil {
		return ev.New.Key
	}
	return ev.Old.Key
}

// eventOf makes the event of a committed change.
func eventOf(c sqlstore.Change) Event {
	ev := Event{Revision: c.Revision, oldBytes: c.OldBytes}
	if c.Op != sqlstore.Delete {
		ev.New = NewEntry(c.New)
		ev.New.attributes.Store(c.Attributes)
	}
	if c.Old != nil {
		ev.Old = NewEntry(*c.Old)
	}
	return ev
}

// Values that nobody reads are held compressed.
//
// What upstream does: its watch cache holds decoded objects, which take four times their JSON.
//
// What is done instead: once an Options.CheckInterval each record in memory is checked. A value that nobody has read
// for unreadChecks checks in a row is compressed by S2, which leaves a third of a Pod. From then
// on each read decompresses it, in about 4 µs, into a slice of the reader's own.
//
// What it relies on: S2 decompresses faster than what is made of a value is (BenchmarkValue). Readers get a value by a
// call, and hold no lock meanwhile; who has got the slice that was held before keeps it
// (TestValues_AreCompressedBesideReaders).
//
// What it earns: two thirds of the values' memory, 560 MB of 100,000 Pods (docs/performance.md).
const (
	unreadChecks = 3
	// minCompressed is the size in bytes of the least value that is compressed.
	minCompressed = 1 << 10
	// maxRatio is the largest compressed size, in percent of the value's, that is kept.
	maxRatio = 75
	// After each compressBatch values compression pauses, so that it takes a fifth of a processor.
	compressBatch = 64
	compressPause = 4 * time.Millisecond
)

// value is a value as an entry holds it. It is immutable but for unread.
type value struct {
	held []byte // compressed if it is shorter than size
	size int
	// unread is how many checks have passed since the value was last read.
	unread atomic.Int64
}

func (v *value) isCompressed() bool { return len(v.held) < v.size }

// Value returns the value of the record; nil if it is not known. Nobody writes to it.
func (e *Entry) Value() []byte {
	v := e.value.Load()
	if v == nil {
		return nil
	}
	if v.unread.Load() != 0 { // a load first, so that readers do not contend for the cache line
		v.unread.Store(0)
	}
	if !v.isCompressed() {
		return v.held
	}
	text, err := s2.Decode(nil, v.held)
	if err != nil {
		panic(fmt.Sprintf("watch: the value of %v at revision %d is damaged in memory: %v", e.Key, e.Revision, err))
	}
	return text
}

// Size returns the length of Value.
func (e *Entry) Size() int {
	if v := e.value.Load(); v != nil {
		return v.size
	}
	return 0
}

// Holds reports whether data is what the entry itself holds, and not a copy of it.
func (e *Entry) Holds(data []byte) bool {
	v := e.value.Load()
	return v != nil && len(v.held) > 0 && len(data) > 0 && &data[0] == &v.held[0]
}

// check makes one check of the value, and returns by how many bytes the value is longer than what is held. compressed
// says that this check has tried to compress it, into buffer, which grows.
func (e *Entry) check(buffer *[]byte) (saved int, compressed bool) {
	v := e.value.Load()
	switch {
	case v == nil:
		return 0, false
	case v.isCompressed():
		return v.size - len(v.held), false
	case v.size < minCompressed || v.unread.Add(1) != unreadChecks:
		return 0, false
	}
	*buffer = s2.Encode(*buffer, v.held)
	if len(*buffer) > v.size*maxRatio/100 {
		return 0, true
	}
	e.value.Store(&value{held: slices.Clone(*buffer), size: v.size})
	e.Representations.DropShared()
	return v.size - len(*buffer), true
}

// compressUnread makes one check of the values in memory, until ctx ends.
func (s *state) compressUnread(ctx context.Context) {
	var buffer []byte
	for rc, records := range s.trees() {
		saved, compressed := 0, 0
		records.Ascend(func(e *Entry) bool {
			less, now := e.check(&buffer)
			saved += less
			if now {
				compressed++
			}
			return !now || compressed%compressBatch > 0 || sleep(ctx, compressPause)
		})
		rc.saved.Store(int64(saved))
	}
}

// trees returns the records in memory.
func (s *state) trees() map[*resourceCache]*btree.BTreeG[*Entry] {
	s.mu.Lock()
	defer s.mu.Unlock()
	trees := map[*resourceCache]*btree.BTreeG[*Entry]{}
	for _, rc := range s.caches {
		if rc.loaded {
			trees[rc] = rc.tree.Clone()
		}
	}
	return trees
}
