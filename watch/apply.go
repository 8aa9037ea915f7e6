package watch

import "byre/sqlstore"

// Publish applies changes that this process committed, in revision order. If changes before
// them are missing, because another process made those, they wait until the tail has read
// those. Publish does not block. It is the function for sqlstore.Options.Publish.
func (f *Feed) Publish(changes []sqlstore.Change) {
	if len(changes) == 0 {
		return
	}
	events := f.prepare(changes)
	f.mu.Lock()
	for _, ev := range events {
		switch revision := f.Revision(); {
		case ev.Revision <= revision:
			// The tail has read this change from the store already.
		case f.begun && len(f.pending) == 0 && ev.Revision == revision+1:
			f.applyLocked(ev)
		case len(f.pending) < maxPending:
			f.pending = append(f.pending, ev)
		}
	}
	f.applyPendingLocked()
	f.hint(events[len(events)-1].Revision)
	dirty := len(f.dirty) > 0
	f.mu.Unlock()
	if dirty {
		signal(f.eventsAdded)
	}
}

// prepare makes the events of changes, and computes the index values of their entries.
//
// Invariant: Index.Value is never called while Feed.mu is held, because it may take as long
// as a decryption, and every reader and writer would wait. Publish and the tail therefore
// call prepare before they lock Feed.mu.
func (f *Feed) prepare(changes []sqlstore.Change) []Event {
	events := make([]Event, len(changes))
	for i, c := range changes {
		events[i] = eventOf(c)
	}
	for _, v := range f.unindexed(events) {
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
func (f *Feed) unindexed(events []Event) (all []unindexed) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var rc *resourceCache
	var indexes []*Index
	for _, ev := range events {
		k := ev.Key()
		if r := k.Of(); rc == nil || rc.resource != r {
			if rc = f.caches[r]; rc == nil || !rc.loaded {
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

// applyPendingLocked applies those pending events that are next in the order of revisions.
func (f *Feed) applyPendingLocked() {
	for f.begun && len(f.pending) > 0 && f.pending[0].Revision <= f.Revision()+1 {
		ev := f.pending[0]
		f.pending = f.pending[1:]
		if ev.Revision == f.Revision()+1 {
			f.applyLocked(ev)
		}
	}
	if len(f.pending) == 0 {
		f.pending = nil
	}
}

// applyLocked applies an event, whose revision is that after the last one applied.
func (f *Feed) applyLocked(ev Event) {
	f.metrics.applied.Inc()
	f.usages.apply([]Event{ev})
	if rc := f.caches[ev.Key().Of()]; rc != nil {
		if ev.New != nil {
			rc.intern(ev.New)
		}
		f.chargeKept(rc, ev)
		if !rc.apply(ev) {
			f.opts.Logger.Error("watch: a change does not fit the state it changes; reading the resource again",
				"revision", ev.Revision, "created", ev.Old == nil, "deleted", ev.New == nil, "key", ev.Key())
			f.dropLocked(rc)
		}
		if rc.watchers.number.Load() > 0 {
			f.dirty[rc] = struct{}{}
		}
	}
	f.advance(ev.Revision)
}
