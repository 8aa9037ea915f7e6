package watch

import (
	"sync"
	"sync/atomic"
)

// scope is the narrowest thing that a subscriber waits for: a change that
// touches none of its scopes does not wake it.
type scope struct {
	kind  scopeKind
	a, b  string
	index *Index // of a scopeIndex, whose a is the value
}

type scopeKind byte

const (
	scopeAll scopeKind = iota
	scopeNamespace
	scopeName
	scopeIndex
)

// watcherGroup holds the idle subscribers of one resource cache. Locks are taken in the order
// Feed.mu, watcherGroup.mu.
type watcherGroup struct {
	// number lets a writer see without the lock that nobody waits.
	number atomic.Int64

	mu    sync.Mutex
	lists map[scope]*watcherList
	// indexed is how many subscribers there are of a scopeIndex, waiting or not,
	// by its index.
	indexed map[*Index]int
	// woken is the revision up to which events have been looked through.
	woken int64
}

type watcherList struct{ list []*watcher }

// watcher is one subscriber's place in a watcherList; its fields but for ready
// are guarded by watcherGroup.mu.
type watcher struct {
	ready chan struct{} // has room for one
	scope scope
	// pos is the revision up to which the subscriber has seen everything.
	pos int64
	// first is the first revision after pos that touched the scope; 0 while
	// none has, and then the watcher is in the list of its scope, at slot.
	first int64
	slot  int
}

// add registers w. Feed.mu is held for reading, so that no event can come
// between the subscriber's last look and this; revision is the feed's.
func (ws *watcherGroup) add(w *watcher, pos, revision int64) {
	select {
	case <-w.ready: // left over from a wake that was already answered
	default:
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.lists) == 0 {
		ws.woken = max(ws.woken, revision)
	}
	l := ws.lists[w.scope]
	if l == nil {
		l = &watcherList{}
		ws.lists[w.scope] = l
	}
	w.pos, w.first, w.slot = pos, 0, len(l.list)
	l.list = append(l.list, w)
	ws.number.Add(1)
}

// count notes n more subscribers by an index, or fewer.
func (ws *watcherGroup) count(index *Index, n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.indexed[index] += n; ws.indexed[index] == 0 {
		delete(ws.indexed, index)
	}
}

// indexes are those that subscribers look by.
func (ws *watcherGroup) indexes() []*Index {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var indexes []*Index
	for index := range ws.indexed {
		indexes = append(indexes, index)
	}
	return indexes
}

// wokenUpTo returns the revision up to which events have been looked through,
// and whether anybody waits for more.
func (ws *watcherGroup) wokenUpTo() (revision int64, some bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.woken, len(ws.lists) > 0
}

// woke returns the first revision that touched w since it was added, or 0 when
// none has up to the revision seen.
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
	l := ws.lists[w.scope]
	last := len(l.list) - 1
	l.list[w.slot] = l.list[last]
	l.list[w.slot].slot = w.slot
	l.list[last] = nil
	l.list = l.list[:last]
	if last == 0 {
		delete(ws.lists, w.scope)
	}
	ws.number.Add(-1)
}

// touch moves the watchers that ev concerns to fired.
func (ws *watcherGroup) touch(ev Event, fired []*watcher) []*watcher {
	key := ev.Key()
	fired = ws.fire(scope{kind: scopeAll}, ev.Revision, fired)
	if key.Namespace != "" {
		fired = ws.fire(scope{kind: scopeNamespace, a: key.Namespace}, ev.Revision, fired)
		fired = ws.fire(scope{kind: scopeName, a: key.Namespace, b: key.Name}, ev.Revision, fired)
	}
	fired = ws.fire(scope{kind: scopeName, b: key.Name}, ev.Revision, fired)
	if len(ws.indexed) == 0 {
		return fired
	}
	for _, e := range []*Entry{ev.Old, ev.New} {
		if e != nil {
			fired = ws.touchIndexed(e, ev.Revision, fired)
		}
	}
	return fired
}

// touchIndexed moves those to fired who wait for an index's value that a record
// has or may have.
func (ws *watcherGroup) touchIndexed(e *Entry, revision int64, fired []*watcher) []*watcher {
	for index := range ws.indexed {
		if p := index.of(e); p.known {
			fired = ws.fire(scope{kind: scopeIndex, a: p.value, index: index}, revision, fired)
			continue
		}
		for s := range ws.lists {
			if s.index == index {
				fired = ws.fire(s, revision, fired)
			}
		}
	}
	return fired
}

func (ws *watcherGroup) fire(s scope, revision int64, fired []*watcher) []*watcher {
	l := ws.lists[s]
	if l == nil {
		return fired
	}
	for i := len(l.list) - 1; i >= 0; i-- {
		if w := l.list[i]; w.pos < revision {
			w.first = revision
			ws.unlist(w)
			fired = append(fired, w)
		}
	}
	return fired
}

// all fires every watcher, to look for itself.
func (ws *watcherGroup) all(fired []*watcher) []*watcher {
	for _, l := range ws.lists {
		for _, w := range l.list {
			w.first = w.pos + 1
			ws.number.Add(-1)
			fired = append(fired, w)
		}
	}
	clear(ws.lists)
	return fired
}

func notify(fired []*watcher) {
	for _, w := range fired {
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}
