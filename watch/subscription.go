package watch

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"byre/sqlstore"
)

// maxBatch bounds the events of one Poll from the ring.
const maxBatch = 256

// Interest selects the changes that a subscription yields.
type Interest struct {
	Resource sqlstore.Resource
	// Namespace selects one namespace; empty means all.
	Namespace string
	// Name selects one name; empty means all.
	Name string
	// Match selects the changes of records that have a value of an index after or before
	// the change, or may have it. A MatchValue without an Index selects all.
	Match MatchValue
}

// Subscription is a cursor over the changes of an Interest. It costs no processor time while
// nobody reads it, and while there is no event of its interest. Only one goroutine may use it
// at a time. The caller closes it.
type Subscription struct {
	all   *subscriptions
	cache *resourceCache
	want  Interest
	// pos is the revision up to which the subscription has returned all its changes.
	pos int64
	// waiting is true from the Poll that added watcher to its group to the next Poll.
	waiting bool
	watcher watcher
	// counted is the counter in the resource cache of such subscriptions; nil once the
	// subscription is closed.
	counted *atomic.Int64
}

// subscriptions makes the subscriptions to the changes of a state, and wakes those that wait. What
// it knows of them is in the resource caches.
type subscriptions struct {
	lifecycle   *lifecycle
	changePages *changePages
	state       *state
	// wakeInterval is defaultWakeInterval, except in benchmarks.
	wakeInterval time.Duration
}

// Subscribe returns a subscription to the changes after a revision. It loads the resource. If
// the revision is compacted, the first Poll or Next fails with ErrCompacted. If the revision does
// not exist yet, Next waits for the first change after it. Subscribe fails with the errors of
// Snapshot.
func (ss *subscriptions) Subscribe(ctx context.Context, want Interest, after int64) (*Subscription, error) {
	for {
		rc, err := ss.state.cacheOf(ctx, want.Resource)
		if err != nil {
			return nil, err
		}
		ss.state.mu.RLock()
		loaded := rc.loaded && !rc.dropped
		if loaded {
			rc.subscribers.Add(1)
		}
		ss.state.mu.RUnlock()
		if loaded {
			return ss.subscription(rc, &rc.subscribers, want, after), nil
		}
	}
}

// Follow is Subscribe to all changes of a resource without loading its records. The Old of an
// event may have no Value.
func (ss *subscriptions) Follow(ctx context.Context, r sqlstore.Resource, after int64) (*Subscription, error) {
	if err := ss.lifecycle.awaitStart(ctx); err != nil {
		return nil, err
	}
	ss.state.mu.Lock()
	defer ss.state.mu.Unlock()
	rc := ss.state.cacheOfLocked(r)
	rc.followers.Add(1)
	return ss.subscription(rc, &rc.followers, Interest{Resource: r}, after), nil
}

func (ss *subscriptions) subscription(rc *resourceCache, counted *atomic.Int64, want Interest, after int64) *Subscription {
	s := &Subscription{all: ss, cache: rc, counted: counted, want: want, pos: after}
	s.watcher.ready = make(chan struct{}, 1)
	s.watcher.want = want
	switch {
	case want.Name != "":
		s.watcher.want.Match = MatchValue{} // one name changes so seldom that any change may wake it
	case want.Match.Index != nil:
		rc.watchers.count(want.Match.Index, 1)
	}
	return s
}

// SkipTo has the subscription leave out the changes up to a revision. A caller subscribes first,
// then takes a snapshot, and skips to the snapshot's revision. If a new epoch begins between the
// two, the subscription ends with ErrCompacted, and no change is lost unnoticed.
func (s *Subscription) SkipTo(revision int64) { s.pos = max(s.pos, revision) }

// Next waits until there are events and returns them, with the revision up to which the
// subscription has now returned all its changes. It fails with ErrCompacted, after which the
// caller can only close the subscription; with ErrClosed; with the context's error; and with
// the errors of reading the store's history.
func (s *Subscription) Next(ctx context.Context) (events []Event, upTo int64, err error) {
	for {
		events, upTo, err = s.Poll(ctx)
		if err != nil || len(events) > 0 {
			return events, upTo, err
		}
		if err := s.all.lifecycle.wait(ctx, s.watcher.ready); err != nil {
			return nil, s.pos, err
		}
	}
}

// Ready returns a channel that receives when there may be events, after a Poll that returned
// none.
func (s *Subscription) Ready() <-chan struct{} { return s.watcher.ready }

// Done returns a channel that is closed when the feed stops.
func (s *Subscription) Done() <-chan struct{} { return s.all.lifecycle.done }

// Poll is Next without waiting for changes: it returns no events if there are none up to the
// revision that it returns. It may read history from the store.
func (s *Subscription) Poll(ctx context.Context) (events []Event, upTo int64, err error) {
	for {
		events, isSynced, err := s.readRing()
		if err != nil || isSynced {
			return events, s.pos, err
		}
		if events, err = s.readChangePage(ctx); err != nil || len(events) > 0 {
			return events, s.pos, err
		}
	}
}

// readRing reads events from the ring. It returns false if the ring does not have all events
// after pos.
func (s *Subscription) readRing() (events []Event, ok bool, err error) {
	for {
		events, ok, err := s.nextInRing()
		if err != nil || !ok || len(events) == 0 {
			return nil, ok, err
		}
		if events = s.filterByIndex(events); len(events) > 0 {
			return events, true, nil
		}
	}
}

// filterByIndex leaves out the events of records that don't have the value of the index. The
// caller must not hold state.mu.
func (s *Subscription) filterByIndex(events []Event) []Event {
	if s.want.Match.Index == nil {
		return events
	}
	return slices.DeleteFunc(events, func(ev Event) bool {
		return !s.want.Match.mayMatch(ev.Old) && !s.want.Match.mayMatch(ev.New)
	})
}

// nextInRing is readRing without the filter by index. If there are no events, it adds the
// subscription's watcher to the group of the resource cache.
func (s *Subscription) nextInRing() (events []Event, ok bool, err error) {
	state, rc := s.all.state, s.cache
	state.mu.RLock()
	defer state.mu.RUnlock()
	if rc.dropped {
		return nil, false, ErrCompacted
	}
	if s.waiting {
		first, matched := rc.watchers.firstEvent(&s.watcher)
		switch {
		case first > 0:
			// Events before first do not match the interest.
			s.pos = max(s.pos, first-1)
		case rc.changed <= matched:
			s.pos = max(s.pos, state.progress.Revision())
			return nil, true, nil
		default:
			// wakeWatchers has not matched the last events yet, so they are read here.
			rc.watchers.remove(&s.watcher)
			s.pos = max(s.pos, matched)
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
	s.pos = max(s.pos, state.progress.Revision())
	if len(events) == 0 {
		rc.watchers.add(&s.watcher, s.pos, state.progress.Revision())
		s.waiting = true
	}
	return events, true, nil
}

// readChangePage returns the events of one page of history, of which there may be none, and moves
// pos to the end of the page.
func (s *Subscription) readChangePage(ctx context.Context) ([]Event, error) {
	p, err := s.all.changePages.load(ctx, s.cache.resource, s.pos)
	if err != nil {
		return nil, err
	}
	var events []Event
	for _, ev := range p.events {
		if ev.Revision > s.pos && s.wants(ev) {
			events = append(events, ev)
		}
	}
	s.pos = p.end
	return s.filterByIndex(events), nil
}

// wants reports whether the interest includes the key of a change.
func (s *Subscription) wants(ev Event) bool {
	key := ev.Key()
	return (s.want.Namespace == "" || key.Namespace == s.want.Namespace) &&
		(s.want.Name == "" || key.Name == s.want.Name)
}

// Close ends the subscription. A second call does nothing.
func (s *Subscription) Close() {
	if s.counted == nil {
		return
	}
	s.counted.Add(-1)
	s.counted = nil
	if index := s.watcher.want.Match.Index; index != nil {
		s.cache.watchers.count(index, -1)
	}
	if s.waiting {
		s.cache.watchers.remove(&s.watcher)
		s.waiting = false
	}
}
