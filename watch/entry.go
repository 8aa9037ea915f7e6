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
