package watch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

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
	// uncompressed is the number of bytes that were added since values and representations were compressed last. grown
	// receives when it is large.
	uncompressed atomic.Int64
	grown        chan struct{}

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
		eventsAdded: make(chan struct{}, 1), grown: make(chan struct{}, 1),
		caches: map[sqlstore.Resource]*resourceCache{},
		kept:   keptSnapshots{byCache: map[*resourceCache][]*keptSnapshot{}},
		dirty:  map[*resourceCache]struct{}{},
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
	if rc.loaded && ev.New != nil {
		s.grow(ev.New.Size())
	}
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

const treeDegree = 32

// resourceCache has the current records of one resource and its last events. state.mu guards
// everything but the watchers, which have a lock of their own.
//
// Invariant: the records of a resource cache that is loaded are those at progress.revision,
// because state.apply applies every event of the resource to it. Otherwise a snapshot would show
// records of another revision than its own.
type resourceCache struct {
	resource sqlstore.Resource

	// load reads the records; nil while no reader needs them. loaded is true once load
	// has succeeded. A resource cache without records serves followers (subscriptions.Follow) from
	// its ring.
	load   *loading
	loaded bool
	// dropped is true once the feed has removed the resource cache. No more events are
	// applied to it, and its subscriptions end.
	dropped bool

	// subscribers counts the subscriptions that need the records, followers those that
	// do not. A caller that increments them holds state.mu, at least for reading, so that
	// unload sees them.
	subscribers, followers atomic.Int64
	// used is set when the records are read, and cleared by each check of unload. idle is
	// the number of checks in a row that found it cleared.
	used atomic.Bool
	idle int
	// bytes is the size of the values of the records in memory, and saved how much less they took after Feed.compress
	// last.
	bytes int
	saved atomic.Int64

	tree    *btree.BTreeG[*Entry]
	indexes map[string]*indexTree // by name
	// builds are the indexes that are being built. Each channel is closed when its index
	// is built.
	builds map[*Index]chan struct{}
	// cloned is the last snapshot; nil if an event was applied since. Reusing it saves
	// clones: a clone is cheap, but the next writes must copy tree nodes.
	cloned *Snapshot
	// changed is the revision of the last event. If there was none since the records were
	// loaded, it is a revision since which the resource has not changed.
	changed int64
	ring    ring

	watchers watcherGroup
}

// loading reads a resource's records. err is set before done is closed.
type loading struct {
	done chan struct{}
	err  error
	// unchanged is the revision of the last change before loading began.
	unchanged int64
	// from is the feed's revision when loading began. backlog has the events that were
	// applied since.
	from    int64
	backlog []Event
}

func newResourceCache(r sqlstore.Resource, opts Options, revision int64) *resourceCache {
	rc := &resourceCache{
		resource: r,
		indexes:  map[string]*indexTree{},
		builds:   map[*Index]chan struct{}{},
		changed:  revision,
		ring:     ring{maxEvents: opts.RingEvents, maxBytes: opts.RingBytes},
		watchers: watcherGroup{lists: map[Interest]*watcherList{}, indexed: map[*Index]int{}},
	}
	rc.ring.reset(revision, true)
	return rc
}

// begin sets the records to those listed at a revision, and then applies the backlog.
func (rc *resourceCache) begin(tree *btree.BTreeG[*Entry], bytes int, revision int64) {
	since := min(rc.load.unchanged, revision)
	for _, ev := range rc.load.backlog {
		if ev.Revision <= revision {
			since = ev.Revision
		}
	}
	rc.tree, rc.bytes, rc.loaded, rc.changed = tree, bytes, true, since
	rc.ring.reset(since, false)
	rc.used.Store(true)
	for _, ev := range rc.load.backlog {
		if ev.Revision > revision {
			rc.apply(ev)
		}
	}
	rc.load.backlog = nil
}

// markUsed records that the records are read.
func (rc *resourceCache) markUsed() {
	if !rc.used.Load() { // a load first, so that readers do not contend for the cache line
		rc.used.Store(true)
	}
}

// unload drops the records. The next reader loads them again. Followers continue.
func (rc *resourceCache) unload() {
	rc.tree, rc.bytes, rc.loaded, rc.load, rc.cloned = nil, 0, false, nil, nil
	rc.indexes = map[string]*indexTree{}
	rc.saved.Store(0)
	rc.ring.reset(rc.changed, true)
}

// heldBytes returns about how many bytes the values of the records take in memory.
func (rc *resourceCache) heldBytes() int { return max(rc.bytes-int(rc.saved.Load()), 0) }

// apply applies the next event of the resource. It returns false if the event creates a record
// that exists, or replaces or deletes one that does not: then the records are wrong.
func (rc *resourceCache) apply(ev Event) bool {
	rc.cloned, rc.changed = nil, ev.Revision
	if !rc.loaded {
		if rc.load != nil {
			rc.load.backlog = append(rc.load.backlog, ev)
		}
		rc.ring.push(ev)
		return true
	}
	var replaced *Entry
	if ev.New == nil {
		replaced, _ = rc.tree.Delete(ev.Old)
	} else {
		replaced, _ = rc.tree.ReplaceOrInsert(ev.New)
		rc.bytes += ev.New.Size()
	}
	if (ev.Old == nil) != (replaced == nil) {
		return false
	}
	if ev.Old = replaced; replaced != nil {
		rc.bytes -= replaced.Size()
	}
	for _, t := range rc.indexes {
		t.apply(ev)
	}
	rc.ring.push(ev)
	return true
}

// indexesInUse returns the indexes that snapshots have, that are being built, or by which
// subscriptions narrow.
func (rc *resourceCache) indexesInUse() []*Index {
	indexes := rc.watchers.indexes()
	for _, t := range rc.indexes {
		indexes = append(indexes, t.Index)
	}
	for index := range rc.builds {
		indexes = append(indexes, index)
	}
	return indexes
}

// snapshot returns a snapshot of the records at the feed's revision; false if they are not in
// memory. Unless cloned is set, the caller holds state.mu for writing.
func (rc *resourceCache) snapshot(revision int64) (Snapshot, bool) {
	if rc.dropped || !rc.loaded {
		return Snapshot{}, false
	}
	rc.markUsed()
	if rc.cloned == nil {
		rc.cloned = &Snapshot{cache: rc, since: rc.changed, tree: rc.tree.Clone()}
		for name, t := range rc.indexes {
			if rc.cloned.indexes == nil {
				rc.cloned.indexes = map[string]indexSnapshot{}
			}
			rc.cloned.indexes[name] = indexSnapshot{t.Index, t.tree.Clone()}
		}
	}
	s := *rc.cloned
	s.revision = revision
	return s, true
}

// Snapshot returns the records of a resource at the feed's revision. The first call for a
// resource loads it. It fails with ErrClosed, with the context's error, and with the errors of
// the store's List.
func (s *state) Snapshot(ctx context.Context, r sqlstore.Resource) (Snapshot, error) {
	return s.SnapshotIndexed(ctx, r, nil)
}

// Snapshots returns snapshots of resources, all of one revision: the feed's after they were loaded. The
// errors are those of Snapshot.
func (s *state) Snapshots(ctx context.Context, resources ...sqlstore.Resource) ([]Snapshot, error) {
	for {
		caches := make([]*resourceCache, len(resources))
		for i, r := range resources {
			var err error
			if caches[i], err = s.cacheOf(ctx, r); err != nil {
				return nil, err
			}
		}
		if snapshots := s.snapshotsOf(caches); snapshots != nil {
			return snapshots, nil
		}
	}
}

// snapshotsOf returns snapshots of resource caches; nil if the records of one are not in memory.
func (s *state) snapshotsOf(caches []*resourceCache) []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshots := make([]Snapshot, len(caches))
	for i, rc := range caches {
		var ok bool
		if snapshots[i], ok = rc.snapshot(s.progress.Revision()); !ok {
			return nil
		}
	}
	return snapshots
}

// maxSmallBytes bounds the values in memory that SnapshotSmall may load.
const maxSmallBytes = 128 << 20

// SnapshotSmall is Snapshot for a resource that is small enough to be held for its next reader:
// with it, the values of all resources in memory take at most maxSmallBytes, and at most half
// of Options.StateBytes. For other resources, and for one without objects, it loads nothing and
// returns false, unless their records are in memory already. After a start it waits until the
// sizes are known.
func (s *state) SnapshotSmall(ctx context.Context, r sqlstore.Resource) (Snapshot, bool, error) {
	most := maxSmallBytes
	if s.opts.StateBytes > 0 {
		most = min(most, s.opts.StateBytes/2)
	}
	s.mu.RLock()
	rc := s.caches[r]
	isLoaded := rc != nil && rc.loaded
	s.mu.RUnlock()
	if !isLoaded {
		usage, err := s.usages.WaitForUsage(ctx, r)
		if _, bytes := s.size(); err != nil || usage.Objects == 0 || usage.Bytes > int64(most-bytes) {
			return Snapshot{}, false, err
		}
	}
	snapshot, err := s.Snapshot(ctx, r)
	return snapshot, err == nil, err
}

// snapshotOf returns a snapshot of a resource cache; false if its records are not in memory.
func (s *state) snapshotOf(rc *resourceCache) (Snapshot, bool) {
	s.mu.RLock()
	if rc.cloned != nil { // then rc.snapshot changes nothing
		defer s.mu.RUnlock()
		return rc.snapshot(s.progress.Revision())
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return rc.snapshot(s.progress.Revision())
}

// Lookup returns one record, or nil if it does not exist, and the feed's revision. It does not
// load the resource: if its records are not in memory, loaded is false and the others are zero.
func (s *state) Lookup(key sqlstore.Key) (e *Entry, revision int64, loaded bool) {
	p := probe(key.Namespace, key.Name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	rc := s.caches[key.Of()]
	if rc == nil || !rc.loaded {
		return nil, 0, false
	}
	rc.markUsed()
	e, _ = rc.tree.Get(p)
	return e, s.progress.Revision(), true
}

// IsLoaded reports whether the records of a resource are in memory.
func (s *state) IsLoaded(r sqlstore.Resource) bool {
	_, _, loaded := s.Lookup(sqlstore.Key{Owner: r.Owner, Group: r.Group, Resource: r.Resource})
	return loaded
}

// cacheOf returns a resource cache that was loaded. The feed may drop the cache, or unload its
// records, at any time: the caller then calls it again.
func (s *state) cacheOf(ctx context.Context, r sqlstore.Resource) (*resourceCache, error) {
	if err := s.lifecycle.awaitStart(ctx); err != nil {
		return nil, err
	}
	rc, load := s.join(r)
	if rc == nil {
		return nil, ErrClosed
	}
	if err := s.lifecycle.wait(ctx, load.done); err != nil {
		return nil, err
	}
	return rc, load.err
}

// join returns the resource cache of r and the loading of its records, which it starts unless
// another reader has. It returns nil if the feed is closed.
func (s *state) join(r sqlstore.Resource) (*resourceCache, *loading) {
	s.mu.RLock()
	rc := s.caches[r]
	if rc != nil && rc.load != nil {
		defer s.mu.RUnlock()
		return rc, rc.load
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	rc = s.cacheOfLocked(r)
	if rc.load == nil {
		load := &loading{done: make(chan struct{}), unchanged: rc.changed, from: s.progress.Revision()}
		if !s.lifecycle.spawn(func(ctx context.Context) { s.load(ctx, rc, load) }) {
			return nil, nil
		}
		rc.load = load
	}
	return rc, rc.load
}

// cacheOfLocked returns the resource cache of r, which may be without records. The caller holds mu.
func (s *state) cacheOfLocked(r sqlstore.Resource) *resourceCache {
	rc := s.caches[r]
	if rc == nil {
		rc = newResourceCache(r, s.opts, s.progress.Revision())
		s.caches[r] = rc
	}
	return rc
}

// load reads the records at one revision, and then applies the changes that were made since
// loading began.
func (s *state) load(ctx context.Context, rc *resourceCache, load *loading) {
	bytes := 0
	a := s.progress.generation.Load()
	var objects atomic.Int64
	stop := sqlstore.ReportElapsed(sqlstore.ReportAfter, sqlstore.ReportInLog, func(elapsed time.Duration) {
		attributes := []any{"group", rc.resource.Group, "resource", rc.resource.Resource, "objects", objects.Load(),
			"elapsed", elapsed.Round(time.Second)}
		if usage, known := s.usages.Usage(rc.resource); known {
			attributes = append(attributes, "of", usage.Objects)
		}
		s.opts.Logger.Info("watch: loading objects", attributes...)
	})
	tree := btree.NewG(treeDegree, lessEntry)
	q := sqlstore.Query{Range: sqlstore.Range{Group: rc.resource.Group, Resource: rc.resource.Resource,
		Owner: rc.resource.Owner}}
	namespaces := map[string]string{}
	listed, err := s.source.List(ctx, q, func(r sqlstore.Record) error {
		// All records share one copy of these strings.
		r.Group, r.Resource = rc.resource.Group, rc.resource.Resource
		if ns, ok := namespaces[r.Namespace]; ok {
			r.Namespace = ns
		} else {
			namespaces[r.Namespace] = r.Namespace
		}
		tree.ReplaceOrInsert(NewEntry(r))
		bytes += len(r.Value)
		objects.Add(1)
		return nil
	})
	switch {
	case err != nil:
	case listed.Revision < load.from:
		// The backlog begins after load.from: the changes between the list's revision and
		// load.from would be missing.
		err = fmt.Errorf("%w: list of revision %d, when %d was applied", sqlstore.ErrUnavailable, listed.Revision, load.from)
	default:
		// The records of a loaded resource cache are those of the feed's revision. So the
		// feed must first apply the changes up to the list's revision. If it takes over
		// another state meanwhile, it drops the cache.
		err = s.progress.awaitApplied(ctx, listed.Revision, a)
	}
	stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(load.done)
	switch {
	case rc.dropped:
	case err != nil:
		load.err, rc.load = err, nil
	default:
		rc.begin(tree, bytes, listed.Revision)
		s.grow(bytes)
	}
}

// Once an Options.CheckInterval the feed checks which resources were read. It unloads the records of a
// resource that nobody watches and nobody has read for idleChecks checks in a row, or, above
// Options.StateBytes, for one check.
const idleChecks = 10

// unload makes one check of the records.
func (s *state) unload() {
	s.mu.Lock()
	defer s.unlock()
	s.kept.dropExpired(time.Now())
	var unread []*resourceCache
	total := 0
	for _, rc := range s.caches {
		total += rc.heldBytes()
		switch {
		case slices.Contains(s.opts.Resident, rc.resource):
		case rc.used.Swap(false) || rc.subscribers.Load() > 0 || len(rc.builds) > 0 || !rc.loaded && rc.load != nil:
			rc.idle = 0
		case rc.loaded || rc.followers.Load() == 0:
			rc.idle++
			unread = append(unread, rc)
		}
	}
	slices.SortFunc(unread, func(a, b *resourceCache) int { return cmp.Compare(b.idle, a.idle) })
	for _, rc := range unread {
		if rc.idle < idleChecks && (s.opts.StateBytes == 0 || total <= s.opts.StateBytes) {
			break
		}
		s.opts.Logger.Debug("watch: a resource leaves memory", "resource", rc.resource, "bytes", rc.heldBytes(), "idle",
			rc.idle)
		total -= rc.heldBytes()
		if rc.followers.Load() == 0 {
			s.drop(rc)
		} else {
			s.kept.drop(rc, maxKept)
			rc.unload()
		}
	}
}

// size returns the number of resources whose records are in memory, and the bytes that their values take.
func (s *state) size() (resources, bytes int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, rc := range s.caches {
		if rc.loaded {
			resources++
		}
		bytes += rc.heldBytes()
	}
	return resources, bytes
}
