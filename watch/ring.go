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
	// bare is true while the resource cache has no records. The ring's events then hold
	// the written values in memory, and lack the replaced ones.
	bare bool
	// since is the revision after which the ring is complete. Invariant: the ring
	// holds every event of the resource in (since, Feed.revision], in order.
	since int64
}

const ringStart = 16

// reset empties the ring: it is complete after a revision.
func (r *ring) reset(since int64, bare bool) {
	*r = ring{maxEvents: r.maxEvents, maxBytes: r.maxBytes, since: since, bare: bare}
}

// bareFraction divides the bounds of a bare ring: followers are few, and seldom fall
// behind.
const bareFraction = 8

func (r *ring) bounds() (events, bytes int) {
	if r.bare {
		return max(r.maxEvents/bareFraction, 1), max(r.maxBytes/bareFraction, 1)
	}
	return r.maxEvents, r.maxBytes
}

// cost is the number of bytes that only the ring keeps in memory, for an event.
func (r *ring) cost(ev Event) int {
	e := ev.Old
	if r.bare {
		e = ev.New
	}
	if e == nil {
		return 0
	}
	return len(e.Value)
}

func (r *ring) at(i int) *Event { return &r.events[(r.head+i)%len(r.events)] }

func (r *ring) push(ev Event) {
	maxEvents, maxBytes := r.bounds()
	if r.size == len(r.events) && r.size < maxEvents {
		r.grow(maxEvents)
	}
	if r.size == maxEvents {
		r.drop()
	}
	*r.at(r.size) = ev
	r.size++
	r.bytes += r.cost(ev)
	for r.bytes > maxBytes && r.size > 1 {
		r.drop()
	}
}

// unshift puts an event before the oldest; false when the ring is full. The caller
// sets since.
func (r *ring) unshift(ev Event) bool {
	maxEvents, maxBytes := r.bounds()
	if r.full() || r.size > 0 && r.bytes+r.cost(ev) > maxBytes {
		return false
	}
	if r.size == len(r.events) {
		r.grow(maxEvents)
	}
	r.head = (r.head + len(r.events) - 1) % len(r.events)
	*r.at(0) = ev
	r.size++
	r.bytes += r.cost(ev)
	return true
}

func (r *ring) full() bool {
	maxEvents, maxBytes := r.bounds()
	return r.size == maxEvents || r.bytes >= maxBytes
}

func (r *ring) drop() {
	oldest := r.at(0)
	r.since = oldest.Revision
	r.bytes -= r.cost(*oldest)
	*oldest = Event{}
	r.head = (r.head + 1) % len(r.events)
	r.size--
}

func (r *ring) grow(most int) {
	bigger := make([]Event, min(max(2*len(r.events), ringStart), most))
	for i := range r.size {
		bigger[i] = *r.at(i)
	}
	r.events, r.head = bigger, 0
}

// first is the index of the oldest event after a revision.
func (r *ring) first(after int64) int {
	return sort.Search(r.size, func(i int) bool { return r.at(i).Revision > after })
}
