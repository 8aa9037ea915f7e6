package storage

import (
	"context"
	"errors"
	"math"
	"slices"

	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// change is one event of a watch, with the entry that the event's object is made of.
type change struct {
	typ apiwatch.EventType
	// entry is the object's state in the event; nil for a bookmark.
	entry *watch.Entry
	// revision is the resourceVersion of the event. For DELETED it is the revision of the
	// delete, or of the update after which the selector does not match any more.
	revision int64
	// initial marks an initial event.
	initial bool
	// initialEnd marks the bookmark that ends the initial events (KEP-3157).
	initialEnd bool
}

// cursor is the position of one watch: first in the initial events, then in the feed.
// Only one goroutine may use it.
type cursor struct {
	s    *Store
	keys keyRange
	opts storage.ListOptions
	// format is the Format of the events; nil for a watch of objects.
	format *encoding.Format
	// requestedRevision is the resourceVersion of the request; 0 when unset or "0".
	requestedRevision int64

	subscription *watch.Subscription
	initial      *initialEvents // nil when all have been returned, or none are wanted
	// initialized returns the seats that priority and fairness gave the request. The
	// cursor calls it with the last initial event, because until then the watch costs
	// as much as a list.
	initialized func()

	// startRevision is the revision after which the watch starts. readRevision is the
	// revision up to which the cursor has read the feed.
	startRevision, readRevision int64
	// pending are changes that next has returned, and that are not encoded yet.
	pending []change
	// nextError is the error that next returns after the changes that it has returned.
	nextError error
	bookmarks BookmarkSchedule
}

// initialEvents are the objects that exist when a watch starts.
type initialEvents struct {
	snapshot      watch.Snapshot
	request       *listRequest
	sendsBookmark bool // whether an annotated bookmark follows
}

// initialBatch is the greatest number of initial events that next returns at once.
const initialBatch = 128

// cursor begins a watch. It returns an error for an invalid request. Any other error is
// returned by the first call of next, so that the client gets it as an event, as from
// upstream.
func (s *Store) cursor(ctx context.Context, key string, opts storage.ListOptions, f *encoding.Format) (*cursor, error) {
	keys, err := s.records.keyRange(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	asked, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		opts.SendInitialEvents = nil
	}
	c := &cursor{s: s, keys: keys, opts: opts, format: f, requestedRevision: int64(min(asked, math.MaxInt64))}
	c.initialized = func() { utilflowcontrol.WatchInitialized(ctx) }
	if opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify {
		deadline, _ := ctx.Deadline()
		c.bookmarks = NewBookmarkSchedule(s.cfg.Clock, s.cfg.BookmarkInterval, deadline)
	}
	c.nextError = c.start(ctx)
	return c, nil
}

func (c *cursor) wantsInitial() bool {
	if c.opts.SendInitialEvents == nil {
		return c.requestedRevision == 0
	}
	return *c.opts.SendInitialEvents
}

// start sets the revision that the watch starts after, and subscribes to the feed.
func (c *cursor) start(ctx context.Context) error {
	s := c.s
	latest := int64(0)
	if c.opts.ResourceVersion == "" {
		var err error
		if latest, err = s.cfg.Feed.Latest(ctx); err != nil {
			return err
		}
	}
	var after int64
	switch {
	case c.wantsInitial():
		if err := s.records.waitFor(ctx, c.requestedRevision); err != nil {
			return err
		}
		if err := c.subscribe(ctx, 0); err != nil {
			return err
		}
		if err := c.startInitial(ctx); err != nil {
			return err
		}
		c.startRevision = c.initial.snapshot.Revision()
		c.readRevision = c.startRevision
		c.subscription.SkipTo(c.startRevision)
		return nil
	case c.requestedRevision > 0:
		if err := s.records.checkHistory(ctx, c.requestedRevision, s.records.currentState(ctx)); err != nil {
			return err
		}
		after = c.requestedRevision
	default:
		after = max(latest, s.cfg.Feed.Revision())
	}
	c.startRevision, c.readRevision = after, after
	c.initialized()
	return c.subscribe(ctx, after)
}

func (c *cursor) subscribe(ctx context.Context, after int64) (err error) {
	c.subscription, err = c.s.cfg.Feed.Subscribe(ctx, c.interest(), after)
	return err
}

func (c *cursor) startInitial(ctx context.Context) error {
	l := &listRequest{keyRange: c.keys, opts: c.opts, format: c.format}
	snapshot, err := c.s.lister.snapshot(ctx, l)
	if err != nil {
		return err
	}
	if snapshot.Revision() == 0 {
		if err := c.s.records.ensureFirstRevision(ctx); err != nil {
			return err
		}
		return c.startInitial(ctx)
	}
	c.initial = &initialEvents{
		snapshot:      snapshot,
		request:       l,
		sendsBookmark: c.opts.SendInitialEvents != nil && c.opts.Predicate.AllowWatchBookmarks,
	}
	return nil
}

// interest is the narrowest range of the feed that has all changes that the selectors can
// match.
func (c *cursor) interest() watch.Interest {
	want := watch.Interest{Resource: c.s.records.resource(), Namespace: c.keys.namespace, Name: c.keys.name}
	p := &c.opts.Predicate
	if c.keys.recursive && p.Field != nil {
		if name, ok := p.Field.RequiresExactMatch("metadata.name"); ok {
			want.Name = name
		}
		if matchValue := c.s.selector.matchValue(p); matchValue != nil {
			want.Match = *matchValue
		}
	}
	return want
}

// next waits for changes and returns at least one. After an error other than the
// context's, the cursor has ended.
func (c *cursor) next(ctx context.Context) ([]change, error) {
	if c.nextError != nil {
		return nil, c.watcherError(ctx, c.nextError)
	}
	for c.initial != nil {
		if last, terminating := c.s.cfg.WatchTermination.revision(); terminating && c.startRevision > last {
			return nil, watch.ErrClosed // the initial objects belong to a later definition
		}
		batch, err := c.nextInitial(ctx)
		if err != nil || len(batch) > 0 {
			return batch, c.watcherError(ctx, err)
		}
	}
	for {
		events, upTo, err := c.poll(ctx)
		if err != nil {
			return nil, c.watcherError(ctx, err)
		}
		batch, err := c.selectEvents(ctx, events)
		switch {
		case err != nil && len(batch) == 0:
			return nil, c.watcherError(ctx, err)
		case err != nil:
			c.nextError = err
			return batch, nil
		}
		if c.bookmarks.Due() && upTo > c.startRevision {
			batch = append(batch, change{typ: apiwatch.Bookmark, revision: upTo})
		}
		if len(batch) > 0 {
			return batch, nil
		}
		if len(events) > 0 {
			continue
		}
		if err := c.waitForWork(ctx); err != nil {
			return nil, c.watcherError(ctx, err)
		}
	}
}

// poll reads the events that the feed has, and the revision up to which it has read.
// Where Config.WatchTermination has begun, it returns no event after WatchTermination's last revision.
func (c *cursor) poll(ctx context.Context) ([]watch.Event, int64, error) {
	last, terminating := c.s.cfg.WatchTermination.revision()
	if terminating {
		if c.readRevision >= last {
			return nil, 0, watch.ErrClosed
		}
		// The feed does not wake a subscription for changes that do not interest it.
		// The subscription may therefore be behind last although no event is to come.
		if err := c.s.cfg.Feed.WaitFor(ctx, last); err != nil {
			return nil, 0, err
		}
	}
	events, upTo, err := c.subscription.Poll(ctx)
	if err != nil {
		return nil, 0, err
	}
	c.readRevision = upTo
	if terminating {
		// The events after last belong to a later definition.
		if later := slices.IndexFunc(events, func(ev watch.Event) bool { return ev.Revision > last }); later >= 0 {
			events = events[:later]
		}
		upTo = min(upTo, last)
	}
	return events, upTo, nil
}

// watcherError converts an error to the one that the watch's client gets.
func (c *cursor) watcherError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, watch.ErrClosed):
		return err
	case errors.Is(err, errReplaced):
		return watch.ErrClosed // the client resumes before what this Store can't show
	}
	return c.s.records.watchError(err)
}

// nextInitial returns at most initialBatch initial events. After the last of them it
// returns the bookmark that ends the initial events, if the request asked for it.
func (c *cursor) nextInitial(ctx context.Context) ([]change, error) {
	in := c.initial
	var batch []change
	var last *watch.Entry
	for e, err := range c.s.selector.selectEntries(ctx, in.request, c.s.selector.candidates(in.request, in.snapshot)) {
		if err != nil {
			return nil, c.s.serializer.EntryError(err, e)
		}
		batch = append(batch, change{typ: apiwatch.Added, entry: e, revision: e.Revision, initial: true})
		if last = e; len(batch) == initialBatch {
			break
		}
	}
	if len(batch) == initialBatch && in.request.recursive {
		in.request.after = &sqlstore.Position{Namespace: last.Namespace, Name: last.Name}
		return batch, nil
	}
	if in.sendsBookmark {
		batch = append(batch, change{typ: apiwatch.Bookmark, revision: in.snapshot.Revision(), initialEnd: true})
	}
	c.initial = nil
	c.initialized()
	return batch, nil
}

// selectEvents converts events of the feed to events of the watch. An object that
// begins to match the selectors is ADDED; an object that ceases to match is DELETED.
func (c *cursor) selectEvents(ctx context.Context, events []watch.Event) ([]change, error) {
	c.decodeEventsAhead(ctx, events)
	var batch []change
	p := &c.opts.Predicate
	for _, ev := range events {
		matches, err := c.selects(ctx, p, ev.New)
		if err != nil {
			return batch, c.changeError(ctx, err, ev.New, false)
		}
		matched, err := c.selects(ctx, p, ev.Old)
		if err != nil {
			return batch, c.changeError(ctx, err, ev.Old, ev.New == nil)
		}
		switch {
		case matches && matched:
			batch = append(batch, change{typ: apiwatch.Modified, entry: ev.New, revision: ev.Revision})
		case matches:
			batch = append(batch, change{typ: apiwatch.Added, entry: ev.New, revision: ev.Revision})
		case matched:
			batch = append(batch, change{typ: apiwatch.Deleted, entry: ev.Old, revision: ev.Revision})
		}
	}
	return batch, nil
}

// decodeEventsAhead decodes ahead the states that a watch compares with its predicate or
// sends.
func (c *cursor) decodeEventsAhead(ctx context.Context, events []watch.Event) {
	if c.s.selector.prepare == nil {
		return
	}
	all := selectsEverything(&c.opts.Predicate)
	var entries []*watch.Entry
	for _, ev := range events {
		if ev.New != nil {
			entries = append(entries, ev.New)
		}
		if ev.Old != nil && (ev.New == nil || !all) {
			entries = append(entries, ev.Old)
		}
	}
	c.s.selector.decodeAhead(ctx, &c.opts.Predicate, c.format, entries)
}

func (c *cursor) selects(ctx context.Context, p *storage.SelectionPredicate, e *watch.Entry) (bool, error) {
	if e == nil {
		return false, nil
	}
	return c.s.selector.matches(ctx, p, e)
}

// changeError is the error of an event whose object, which may be the last state of one that was deleted, cannot be read.
func (c *cursor) changeError(ctx context.Context, err error, e *watch.Entry, isDeleted bool) error {
	var corrupt *encoding.CorruptError
	if isDeleted && encoding.AllowsUnsafeDeletion() && errors.As(err, &corrupt) {
		return corruptDeletedError(err)
	}
	if c.s.records.isLostHistory(ctx, err, e) {
		return watch.ErrCompacted
	}
	return c.s.serializer.EntryError(err, e)
}

// waitForWork waits until the feed has events, a bookmark is due, or the watch ends.
func (c *cursor) waitForWork(ctx context.Context) error {
	select {
	case <-c.subscription.Ready():
		return nil
	case <-c.bookmarks.Timer():
		return nil
	case <-c.s.cfg.WatchTermination.Begun():
		return nil
	case <-c.subscription.Done():
		return watch.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *cursor) close() {
	if c.subscription != nil {
		c.subscription.Close()
	}
	c.bookmarks.Stop()
	c.initial = nil
}
