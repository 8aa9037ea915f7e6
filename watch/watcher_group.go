package watch

import (
	"sync"
	"sync/atomic"
)

// watcherGroup holds the synced watchers of one resource cache that wait for events, as etcd's
// watcherGroup does. Who takes both locks takes state.mu before watcherGroup.mu.
type watcherGroup struct {
	// number is how many watchers are in lists. A writer reads it without the lock.
	number atomic.Int64

	mu sync.Mutex
	// lists has the watchers by their interest. For an event take looks up only the few
	// interests that the event may concern.
	lists map[Interest]*watcherList
	// indexed is how many subscriptions narrow by an index, whether they wait or not.
	indexed map[*Index]int
	// matched is the revision up to which events were matched with watchers.
	// Invariant: there is no event of the interest of a watcher in lists after its pos, up
	// to matched. takeConcerned and add keep it. Otherwise a subscription would skip an
	// event (Subscription.nextInRing).
	matched int64
}

type watcherList struct{ list []*watcher }

// watcher is a subscription's place in a watcherList. watcherGroup.mu guards all fields but
// ready.
type watcher struct {
	ready chan struct{} // its capacity is 1
	// want is the subscription's interest. If the interest has a name, want has no index.
	want Interest
	// pos is the revision up to which the subscription has read everything.
	pos int64
	// first is the revision of the first event of want after pos, or 0.
	// Invariant: while first is 0, the watcher is in the list of want, at slot.
	first int64
	slot  int
}

// add adds w to the list of its interest. The caller has held state.mu, at least for reading,
// since it found no more events, so that no event was applied since. revision is the feed's.
func (ws *watcherGroup) add(w *watcher, pos, revision int64) {
	select {
	case <-w.ready: // the subscription has read the events of this wake already
	default:
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.lists) == 0 {
		ws.matched = max(ws.matched, revision) // there were no watchers to match events with
	}
	l := ws.lists[w.want]
	if l == nil {
		l = &watcherList{}
		ws.lists[w.want] = l
	}
	w.pos, w.first, w.slot = pos, 0, len(l.list)
	l.list = append(l.list, w)
	ws.number.Add(1)
}

// count adds n to the number of subscriptions that narrow by an index.
func (ws *watcherGroup) count(index *Index, n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.indexed[index] += n; ws.indexed[index] == 0 {
		delete(ws.indexed, index)
	}
}

// indexes returns the indexes by which subscriptions narrow.
func (ws *watcherGroup) indexes() []*Index {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var indexes []*Index
	for index := range ws.indexed {
		indexes = append(indexes, index)
	}
	return indexes
}

// matchedUpTo returns the revision up to which events were matched with watchers, and whether
// the group has watchers.
func (ws *watcherGroup) matchedUpTo() (revision int64, hasWatchers bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.matched, len(ws.lists) > 0
}

// firstEvent returns the revision of the first event for w since w was added; 0 if there is none
// up to the revision matched.
func (ws *watcherGroup) firstEvent(w *watcher) (first, matched int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.first, ws.matched
}

func (ws *watcherGroup) remove(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.first == 0 {
		ws.unlist(w)
	}
}

func (ws *watcherGroup) unlist(w *watcher) {
	l := ws.lists[w.want]
	last := len(l.list) - 1
	l.list[w.slot] = l.list[last]
	l.list[w.slot].slot = w.slot
	l.list[last] = nil
	l.list = l.list[:last]
	if last == 0 {
		delete(ws.lists, w.want)
	}
	ws.number.Add(-1)
}

// take removes the watchers that ev concerns from the group and appends them to taken.
func (ws *watcherGroup) take(ev Event, taken []*watcher) []*watcher {
	key := ev.Key()
	all := Interest{Resource: key.Of()}
	one := all
	one.Name = key.Name
	taken = ws.takeList(all, ev.Revision, taken)
	taken = ws.takeList(one, ev.Revision, taken)
	if key.Namespace != "" {
		inNamespace := all
		inNamespace.Namespace, one.Namespace = key.Namespace, key.Namespace
		taken = ws.takeList(inNamespace, ev.Revision, taken)
		taken = ws.takeList(one, ev.Revision, taken)
	}
	if len(ws.indexed) == 0 {
		return taken
	}
	for _, e := range []*Entry{ev.Old, ev.New} {
		if e != nil {
			taken = ws.takeIndexed(e, ev.Revision, taken)
		}
	}
	return taken
}

// takeIndexed takes the watchers that narrow by a value of an index that a record has or may have.
func (ws *watcherGroup) takeIndexed(e *Entry, revision int64, taken []*watcher) []*watcher {
	for index := range ws.indexed {
		p := index.locate(e)
		if !p.known {
			for want := range ws.lists {
				if want.Match.Index == index {
					taken = ws.takeList(want, revision, taken)
				}
			}
			continue
		}
		want := Interest{Resource: e.Key.Of(), Match: MatchValue{index, p.value}}
		taken = ws.takeList(want, revision, taken)
		if want.Namespace = e.Namespace; want.Namespace != "" {
			taken = ws.takeList(want, revision, taken)
		}
	}
	return taken
}

// takeList takes the watchers of one interest that have not read the event of a revision.
func (ws *watcherGroup) takeList(want Interest, revision int64, taken []*watcher) []*watcher {
	l := ws.lists[want]
	if l == nil {
		return taken
	}
	for i := len(l.list) - 1; i >= 0; i-- {
		if w := l.list[i]; w.pos < revision {
			w.first = revision
			ws.unlist(w)
			taken = append(taken, w)
		}
	}
	return taken
}

// takeAll takes every watcher. Each subscription then finds its events itself.
func (ws *watcherGroup) takeAll(taken []*watcher) []*watcher {
	for _, l := range ws.lists {
		for _, w := range l.list {
			w.first = w.pos + 1
			ws.number.Add(-1)
			taken = append(taken, w)
		}
	}
	clear(ws.lists)
	return taken
}
