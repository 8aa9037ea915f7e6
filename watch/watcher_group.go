package watch

import (
	"sync"
	"sync/atomic"
)

// watcherGroup holds the synced watchers of one resource cache that wait for events
// (as etcd's watcherGroup does). Locks are taken in the order Feed.mu,
// watcherGroup.mu.
type watcherGroup struct {
	// number is how many watchers are in lists. A writer reads it without the lock.
	number atomic.Int64

	mu sync.Mutex
	// lists are the watchers by what they watch. An event looks up the few
	// interests that it may concern, and no watcher besides.
	lists map[Interest]*watcherList
	// indexed is how many subscriptions narrow by an index, waiting or not.
	indexed map[*Index]int
	// woken is the revision up to which events were matched with watchers.
	// Invariant: a watcher in lists has no event of its interest in (pos, woken].
	woken int64
}

type watcherList struct{ list []*watcher }

// watcher is a subscription's place in a watcherList; its fields but for ready
// are guarded by watcherGroup.mu.
type watcher struct {
	ready chan struct{} // holds one token at most
	// want is the subscription's interest, without its index where it has a name.
	want Interest
	// pos is the revision up to which the subscription has read everything.
	pos int64
	// first is the first revision after pos with an event of want, or 0.
	// Invariant: while it is 0 the watcher is in the list of want, at slot.
	first int64
	slot  int
}

// add registers w. Feed.mu is held for reading, so that no event can come
// between the subscriber's last look and this; revision is the feed's.
func (ws *watcherGroup) add(w *watcher, pos, revision int64) {
	select {
	case <-w.ready: // left over from a wake that was handled already
	default:
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.lists) == 0 {
		ws.woken = max(ws.woken, revision) // there was nobody to match events with
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

// indexes are those that subscriptions narrow by.
func (ws *watcherGroup) indexes() []*Index {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var indexes []*Index
	for index := range ws.indexed {
		indexes = append(indexes, index)
	}
	return indexes
}

// wokenUpTo returns the revision up to which events were matched with watchers, and
// whether the group has watchers.
func (ws *watcherGroup) wokenUpTo() (revision int64, hasWatchers bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.woken, len(ws.lists) > 0
}

// woke returns the first revision with an event for w since it was added, or 0 when
// there is none up to the revision seen.
func (ws *watcherGroup) woke(w *watcher) (first, seen int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.first, ws.woken
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
	all := Interest{Resource: resourceOf(key)}
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

// takeIndexed takes the watchers of an index's value that a record has or may have.
func (ws *watcherGroup) takeIndexed(e *Entry, revision int64, taken []*watcher) []*watcher {
	for index := range ws.indexed {
		p := index.of(e)
		if !p.known {
			for want := range ws.lists {
				if want.Narrow.Index == index {
					taken = ws.takeList(want, revision, taken)
				}
			}
			continue
		}
		want := Interest{Resource: resourceOf(e.Key), Narrow: Narrowing{index, p.value}}
		taken = ws.takeList(want, revision, taken)
		if want.Namespace = e.Namespace; want.Namespace != "" {
			taken = ws.takeList(want, revision, taken)
		}
	}
	return taken
}

// takeList takes the watchers of one interest that have not read a revision.
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

// takeAll removes every watcher from the group; each then reads the ring itself.
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
