package watch

import "sort"

// ring keeps the last events of one resource, bounded by their number and by
// the bytes of the values they replaced (a value that is still current costs
// the ring nothing).
type ring struct {
	events []Event // circular
	head   int     // index of the oldest
	size   int
	bytes  int

	maxEvents int
	maxBytes  int
	// since is the revision after which the ring is complete.
	since int64
}

const ringStart = 16

func replacedBytes(ev Event) int {
	if ev.Old == nil {
		return 0
	}
	return len(ev.Old.Value)
}

func (r *ring) at(i int) *Event { return &r.events[(r.head+i)%len(r.events)] }

func (r *ring) push(ev Event) {
	if r.size == len(r.events) && r.size < r.maxEvents {
		r.grow()
	}
	if r.size == r.maxEvents {
		r.drop()
	}
	*r.at(r.size) = ev
	r.size++
	r.bytes += replacedBytes(ev)
	for r.bytes > r.maxBytes && r.size > 1 {
		r.drop()
	}
}

// unshift puts an event before the oldest; false when there is no room. The
// caller sets since.
func (r *ring) unshift(ev Event) bool {
	if r.full() || r.size > 0 && r.bytes+replacedBytes(ev) > r.maxBytes {
		return false
	}
	if r.size == len(r.events) {
		r.grow()
	}
	r.head = (r.head + len(r.events) - 1) % len(r.events)
	*r.at(0) = ev
	r.size++
	r.bytes += replacedBytes(ev)
	return true
}

func (r *ring) full() bool { return r.size == r.maxEvents || r.bytes >= r.maxBytes }

func (r *ring) drop() {
	oldest := r.at(0)
	r.since = oldest.Revision
	r.bytes -= replacedBytes(*oldest)
	*oldest = Event{}
	r.head = (r.head + 1) % len(r.events)
	r.size--
}

func (r *ring) grow() {
	bigger := make([]Event, min(max(2*len(r.events), ringStart), r.maxEvents))
	for i := range r.size {
		bigger[i] = *r.at(i)
	}
	r.events, r.head = bigger, 0
}

// first is the index of the oldest event after a revision.
func (r *ring) first(after int64) int {
	return sort.Search(r.size, func(i int) bool { return r.at(i).Revision > after })
}
