package watch

import (
	"sync/atomic"

	"byre/sqlstore"
)

// Entry is one record in memory, with its representations and its index values. The record
// is immutable. The method Value returns its value; Record.Value is nil.
type Entry struct {
	sqlstore.Record
	// Representations are the forms in which readers have shown the record.
	Representations RepresentationSet
	value           atomic.Pointer[text]
	attributes      atomic.Pointer[sqlstore.Attributes]
	values          atomic.Pointer[indexValue]
}

// NewEntry makes an entry of a record. Readers call it for a record that they have read from
// the store.
func NewEntry(r sqlstore.Record) *Entry {
	e := &Entry{Record: r}
	e.Record.Value = nil
	if r.Value != nil {
		e.value.Store(newText(r.Value))
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

// Value returns the value of the record; nil if it is not known. Nobody writes to it. Each call decompresses a value
// that is held compressed.
func (e *Entry) Value() []byte {
	if v := e.value.Load(); v != nil {
		return v.bytes(nil)
	}
	return nil
}

// Size returns the length of Value.
func (e *Entry) Size() int {
	if v := e.value.Load(); v != nil {
		return int(v.size)
	}
	return 0
}

// First returns the first byte of Value; 0 if there is none.
func (e *Entry) First() byte {
	if v := e.value.Load(); v != nil {
		return v.first
	}
	return 0
}

// Share makes the value the Body of a representation, which has the same bytes.
func (e *Entry) Share(r *Representation) {
	if v := e.value.Load(); v != nil {
		r.Shared, r.text = true, v
	}
}

// setValue sets another form of the same value.
func (e *Entry) setValue(v *text) {
	e.value.Store(v)
	e.Representations.share(v)
}
