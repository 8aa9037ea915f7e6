package watch

import (
	"sync/atomic"

	"byre/sqlstore"
)

// Entry is one record in memory, with room for what its reader derived from
// it and for the values that indexes find it by. The record is immutable.
type Entry struct {
	sqlstore.Record
	memo   atomic.Value
	values atomic.Pointer[indexValue]
}

// NewEntry wraps a record that did not come from the feed.
func NewEntry(r sqlstore.Record) *Entry { return &Entry{Record: r} }

// Memo is what SetMemo kept last, or the Memo of the Write that made the
// record, or nil.
func (e *Entry) Memo() any { return e.memo.Load() }

// SetMemo keeps what was derived from the record for as long as the entry
// lives. All memos of a resource must have one concrete type. Two readers may
// derive the same at the same time; the last one stays.
func (e *Entry) SetMemo(memo any) { e.memo.Store(memo) }

func lessEntry(a, b *Entry) bool {
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// entryOf makes the entry of the state that a change wrote.
func entryOf(c sqlstore.Change) *Entry {
	e := NewEntry(c.New)
	if c.Memo != nil {
		e.memo.Store(c.Memo)
	}
	return e
}
