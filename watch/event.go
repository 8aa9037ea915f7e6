package watch

import "byre/sqlstore"

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
