package watch

import (
	"sync/atomic"

	"byre/sqlstore"
	"byre/watch/representation"
)

// Entry is one record in memory, with what readers have made of it and the values of
// indexes. The record is immutable.
type Entry struct {
	sqlstore.Record
	// Representations are the forms in which readers have shown the record.
	Representations representation.Set
	attributes      atomic.Pointer[sqlstore.Attributes]
	values          atomic.Pointer[indexValue]
}

// NewEntry wraps a record that did not come from the feed.
func NewEntry(r sqlstore.Record) *Entry { return &Entry{Record: r} }

// Attributes returns what SetAttributes has set last, or else the attributes of the Write
// that made the record, or nil.
func (e *Entry) Attributes() *sqlstore.Attributes { return e.attributes.Load() }

// SetAttributes keeps the attributes that a reader has found, for as long as the entry
// lives. If two readers find them at the same time, the entry keeps those of the last
// one.
func (e *Entry) SetAttributes(a *sqlstore.Attributes) { e.attributes.Store(a) }

func lessEntry(a, b *Entry) bool {
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// entryOf makes the entry of the state that a change wrote.
func entryOf(c sqlstore.Change) *Entry {
	e := NewEntry(c.New)
	e.attributes.Store(c.Attributes)
	return e
}
