package watch

import (
	"sync"

	"byre/sqlstore"
)

// state has the current records of the resources that somebody reads, and their last events.
type state struct {
	source    Source
	opts      Options
	lifecycle *lifecycle
	progress  *progress
	usages    *usages
	// eventsAdded receives when resource caches are dirty; subscriptions.wakeWatchers then
	// wakes their watchers.
	eventsAdded chan struct{}

	// mu guards what follows and the resource caches. Invariant: who changes
	// progress.revision holds it. So a reader that holds it sees records of that revision.
	mu     sync.RWMutex
	caches map[sqlstore.Resource]*resourceCache
	kept   keptSnapshots
	// dirty has the resource caches with events for which wakeWatchers has not woken
	// their watchers yet.
	dirty map[*resourceCache]struct{}
}

func newState(source Source, opts Options, l *lifecycle, p *progress, u *usages) *state {
	return &state{
		source: source, opts: opts, lifecycle: l, progress: p, usages: u,
		eventsAdded: make(chan struct{}, 1),
		caches:      map[sqlstore.Resource]*resourceCache{},
		kept:        keptSnapshots{byCache: map[*resourceCache][]*keptSnapshot{}},
		dirty:       map[*resourceCache]struct{}{},
	}
}

// Forget removes the records, events and indexes of a resource from memory. Subscriptions of
// the resource end with ErrCompacted. The next reader loads the records again.
func (s *state) Forget(r sqlstore.Resource) {
	s.mu.Lock()
	defer s.unlock()
	if rc := s.caches[r]; rc != nil {
		s.drop(rc)
	}
}

// unlock unlocks mu, and has the watchers of dirty resource caches woken.
func (s *state) unlock() {
	isDirty := len(s.dirty) > 0
	s.mu.Unlock()
	if isDirty {
		signal(s.eventsAdded)
	}
}

// drop removes a resource cache. Its subscriptions end with ErrCompacted; the next reader of the
// resource makes and loads another cache. The caller holds mu, and calls unlock.
func (s *state) drop(rc *resourceCache) {
	rc.dropped = true
	s.kept.drop(rc, maxKept)
	delete(s.caches, rc.resource)
	s.dirty[rc] = struct{}{}
}

// takeDirty returns the dirty resource caches, which are then no longer dirty.
func (s *state) takeDirty() map[*resourceCache]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty := s.dirty
	s.dirty = map[*resourceCache]struct{}{}
	return dirty
}

// restart drops all records, and makes a state of the store that of the feed.
func (s *state) restart(stored sqlstore.State) {
	s.mu.Lock()
	defer s.unlock()
	for _, rc := range s.caches {
		s.drop(rc)
	}
	s.progress.restart(stored)
}

// apply applies the events that come next, of which there is one at least.
func (s *state) apply(events []Event) {
	s.mu.Lock()
	defer s.unlock()
	for _, ev := range events {
		if rc := s.caches[ev.Key().Of()]; rc != nil {
			s.applyTo(rc, ev)
		}
	}
	s.progress.advance(events[len(events)-1].Revision)
}

// applyTo applies one event to its resource cache. The caller holds mu, and calls unlock.
func (s *state) applyTo(rc *resourceCache, ev Event) {
	if ev.New != nil {
		// All entries share the strings of the resource, also while they are in a ring alone.
		ev.New.Group, ev.New.Resource = rc.resource.Group, rc.resource.Resource
	}
	s.kept.charge(rc, ev)
	if !rc.apply(ev) {
		s.opts.Logger.Error("watch: a change does not fit the state it changes; reading the resource again",
			"revision", ev.Revision, "created", ev.Old == nil, "deleted", ev.New == nil, "key", ev.Key())
		s.drop(rc)
	}
	if rc.watchers.number.Load() > 0 {
		s.dirty[rc] = struct{}{}
	}
}

// prepare makes the events of changes, and computes the index values of their entries.
//
// Invariant: Index.Value is never called while a lock of the feed is held, because it may take as
// long as a decryption, and every reader and writer would wait. Publish and the tail therefore
// call prepare before they lock.
func (s *state) prepare(changes []sqlstore.Change) []Event {
	events := make([]Event, len(changes))
	for i, c := range changes {
		events[i] = eventOf(c)
	}
	for _, v := range s.unindexed(events) {
		v.index.locate(v.entry)
	}
	return events
}

// unindexed is an entry whose value an index needs when its event is applied.
type unindexed struct {
	index *Index
	entry *Entry
}

// unindexed returns the entries that events write, and those that they replace, for
// each index in use.
func (s *state) unindexed(events []Event) (all []unindexed) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var rc *resourceCache
	var indexes []*Index
	for _, ev := range events {
		k := ev.Key()
		if r := k.Of(); rc == nil || rc.resource != r {
			if rc = s.caches[r]; rc == nil || !rc.loaded {
				rc = nil
				continue
			}
			indexes = rc.indexesInUse()
		}
		if len(indexes) == 0 {
			continue
		}
		replaced, _ := rc.tree.Get(probe(k.Namespace, k.Name))
		for _, index := range indexes {
			for _, e := range []*Entry{ev.New, replaced} {
				if e != nil {
					all = append(all, unindexed{index, e})
				}
			}
		}
	}
	return all
}
