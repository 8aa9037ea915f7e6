package watch

import "sort"

// ring has the last events of one resource. It is bounded by their number, and by the bytes of
// the values that they replaced. Current values do not count, because the tree holds them too.
type ring struct {
	events []Event // circular
	head   int     // index of the oldest
	size   int
	bytes  int

	maxEvents int
	maxBytes  int
	// unloaded is true while the resource cache has no records. Then only the ring holds the
	// values that its events wrote, and its events may lack the values that they replaced.
	unloaded bool
	// since is the revision after which the ring is complete.
	// Invariant: the ring holds every event of the resource after since, up to
	// progress.revision, in order. push and drop keep it. Otherwise a subscription
	// that reads the ring would miss events.
	since int64
}

// ringStart is the number of events for which the first memory is allocated.
const ringStart = 16

// reset empties the ring, which is then complete after a revision.
func (r *ring) reset(since int64, unloaded bool) {
	*r = ring{maxEvents: r.maxEvents, maxBytes: r.maxBytes, since: since, unloaded: unloaded}
}

// unloadedFraction divides the bounds of an unloaded ring, because followers are few and seldom fall
// behind.
const unloadedFraction = 8

func (r *ring) bounds() (events, bytes int) {
	if r.unloaded {
		return max(r.maxEvents/unloadedFraction, 1), max(r.maxBytes/unloadedFraction, 1)
	}
	return r.maxEvents, r.maxBytes
}

// cost returns the number of bytes of an event's values that only the ring holds in memory.
func (r *ring) cost(ev Event) int {
	e := ev.Old
	if r.unloaded {
		e = ev.New
	}
	if e == nil {
		return 0
	}
	return e.Size()
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

// first returns the index of the oldest event after a revision; size if there is none.
func (r *ring) first(after int64) int {
	return sort.Search(r.size, func(i int) bool { return r.at(i).Revision > after })
}
