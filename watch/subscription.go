package watch

import (
	"context"
	"slices"
	"sync/atomic"
)

// maxBatch is about how many events are handed out at a time.
const maxBatch = 256

// Interest says which changes a subscription is for.
type Interest struct {
	Resource Resource
	// Namespace narrows to one namespace; empty means all.
	Namespace string
	// Name narrows to one name; empty means all.
	Name string
	// Narrow narrows to the records that have or had a value of an index, or may have had
	// it. A Narrowing without an Index narrows nothing.
	Narrow Narrowing
}

// Subscription is a cursor over the changes of an Interest. It costs no processor time
// while it is not read, and while no event of its interest comes. It is for one
// goroutine; it must be closed.
type Subscription struct {
	feed  *Feed
	cache *resourceCache
	want  Interest
	// pos is the revision up to which everything has been handed out.
	pos int64
	// waiting is true from the Poll that added watcher to its group to the next Poll.
	waiting bool
	watcher watcher
	// counted is the resource cache's number of such subscriptions; nil when closed.
	counted *atomic.Int64
}

// Subscribe follows the changes after a revision. If the revision is compacted, the first
// Poll or Next fails with ErrCompacted. If it is of the future, Next waits for it.
func (f *Feed) Subscribe(ctx context.Context, want Interest, after int64) (*Subscription, error) {
	for {
		rc, err := f.cacheOf(ctx, want.Resource)
		if err != nil {
			return nil, err
		}
		f.mu.RLock()
		loaded := rc.loaded && !rc.gone
		if loaded {
			rc.subscribers.Add(1)
		}
		f.mu.RUnlock()
		if loaded {
			return f.subscription(rc, &rc.subscribers, want, after), nil
		}
	}
}

// Follow is Subscribe to all changes of a resource without loading its records. An
// event's Old may be without a Value.
func (f *Feed) Follow(ctx context.Context, r Resource, after int64) (*Subscription, error) {
	if err := f.wait(ctx, f.started); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	rc := f.cacheOfLocked(r)
	rc.followers.Add(1)
	return f.subscription(rc, &rc.followers, Interest{Resource: r}, after), nil
}

func (f *Feed) subscription(rc *resourceCache, counted *atomic.Int64, want Interest, after int64) *Subscription {
	s := &Subscription{feed: f, cache: rc, counted: counted, want: want, pos: after}
	s.watcher.ready = make(chan struct{}, 1)
	s.watcher.want = want
	switch {
	case want.Name != "":
		s.watcher.want.Narrow = Narrowing{} // one name changes seldom enough
	case want.Narrow.Index != nil:
		rc.watchers.count(want.Narrow.Index, 1)
	}
	return s
}

// SkipTo leaves out the changes up to a revision. A caller subscribes first, then takes a
// snapshot, and skips to the snapshot's revision. If a new epoch began between the two,
// the subscription ends with ErrCompacted.
func (s *Subscription) SkipTo(revision int64) { s.pos = max(s.pos, revision) }

// Next waits until there are events and returns them, with the revision up to
// which everything has now been handed out. Errors: ErrCompacted, after which
// the subscription is of no use; the context's; what reading history gives.
func (s *Subscription) Next(ctx context.Context) (events []Event, upTo int64, err error) {
	for {
		events, upTo, err = s.Poll(ctx)
		if err != nil || len(events) > 0 {
			return events, upTo, err
		}
		if err := s.feed.wait(ctx, s.watcher.ready); err != nil {
			return nil, s.pos, err
		}
	}
}

// Ready receives when a Poll may give events, once the last Poll gave none.
func (s *Subscription) Ready() <-chan struct{} { return s.watcher.ready }

// Done is closed when the feed stops.
func (s *Subscription) Done() <-chan struct{} { return s.feed.done }

// Poll is Next without waiting for changes: it returns no events when there
// are none up to the revision it returns. It may read history from the store.
func (s *Subscription) Poll(ctx context.Context) (events []Event, upTo int64, err error) {
	for {
		events, isSynced, err := s.readRing()
		if err != nil || isSynced {
			return events, s.pos, err
		}
		if events, err = s.readHistory(ctx); err != nil || len(events) > 0 {
			return events, s.pos, err
		}
	}
}

// readRing reads from the ring; it returns false when that does not go back to pos.
func (s *Subscription) readRing() (events []Event, ok bool, err error) {
	for {
		events, ok, err := s.nextInRing()
		if err != nil || !ok || len(events) == 0 {
			return nil, ok, err
		}
		if events = s.narrowed(events); len(events) > 0 {
			return events, true, nil
		}
	}
}

// narrowed leaves out what doesn't have the value of an index. It looks through
// records, which is not done under the feed's lock.
func (s *Subscription) narrowed(events []Event) []Event {
	if s.want.Narrow.Index == nil {
		return events
	}
	return slices.DeleteFunc(events, func(ev Event) bool {
		return !s.want.Narrow.may(ev.Old) && !s.want.Narrow.may(ev.New)
	})
}

// nextInRing is readRing but for the index. When it returns no events, s waits.
func (s *Subscription) nextInRing() (events []Event, ok bool, err error) {
	f, rc := s.feed, s.cache
	f.mu.RLock()
	defer f.mu.RUnlock()
	if rc.gone {
		return nil, false, ErrCompacted
	}
	if s.waiting {
		first, seen := rc.watchers.woke(&s.watcher)
		switch {
		case first > 0:
			// Events before first do not match the interest.
			s.pos = max(s.pos, first-1)
		case rc.changed <= seen:
			s.pos = max(s.pos, f.revision)
			return nil, true, nil
		default:
			// wakeWatchers has not matched the last events yet, so they are read here.
			rc.watchers.remove(&s.watcher)
			s.pos = max(s.pos, seen)
		}
		s.waiting = false
	}
	if s.pos < rc.ring.since {
		return nil, false, nil
	}
	for i := rc.ring.first(s.pos); i < rc.ring.size; i++ {
		ev := rc.ring.at(i)
		if s.wants(*ev) {
			events = append(events, *ev)
			if len(events) == maxBatch {
				s.pos = ev.Revision
				return events, true, nil
			}
		}
	}
	s.pos = max(s.pos, f.revision)
	if len(events) == 0 {
		rc.watchers.add(&s.watcher, s.pos, f.revision)
		s.waiting = true
	}
	return events, true, nil
}

// readHistory reads a page of history. It moves pos, and may find nothing wanted.
func (s *Subscription) readHistory(ctx context.Context) ([]Event, error) {
	p, err := s.feed.page(ctx, s.pos)
	if err != nil {
		return nil, err
	}
	var events []Event
	for _, ev := range p.events[s.cache.resource] {
		if ev.Revision > s.pos && s.wants(ev) {
			events = append(events, ev)
		}
	}
	s.pos = p.end
	return s.narrowed(events), nil
}

// wants reports whether the interest includes the key of a change.
func (s *Subscription) wants(ev Event) bool {
	key := ev.Key()
	return (s.want.Namespace == "" || key.Namespace == s.want.Namespace) &&
		(s.want.Name == "" || key.Name == s.want.Name)
}

// Close ends the subscription.
func (s *Subscription) Close() {
	if s.counted == nil {
		return
	}
	s.counted.Add(-1)
	s.counted = nil
	if index := s.watcher.want.Narrow.Index; index != nil {
		s.cache.watchers.count(index, -1)
	}
	if s.waiting {
		s.cache.watchers.remove(&s.watcher)
		s.waiting = false
	}
}
