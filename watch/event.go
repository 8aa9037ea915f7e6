package watch

import "byre/sqlstore"

// Event is one change of one record. A watcher gets the same Event that was made
// from the committed change.
type Event struct {
	// Revision is the change's own.
	Revision int64
	// New is the state that the change wrote; nil when it deleted.
	New *Entry
	// Old is the state that it replaced; nil when it created. Its Value may be nil
	// until the event is applied to a resource cache that holds the records.
	Old *Entry
	// oldBytes is the length of the value that the change replaced, also if Old has no
	// Value.
	oldBytes int64
}

// Key is the key of the record that changed.
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
		ev.New = entryOf(c)
	}
	if c.Old != nil {
		ev.Old = NewEntry(*c.Old)
	}
	return ev
}
