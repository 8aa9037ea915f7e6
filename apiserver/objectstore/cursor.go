package objectstore

import (
	"context"
	"errors"
	"slices"

	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"byre/sqlstore"
	"byre/watch"
)

// change is one event of a watch before it is decoded or encoded.
type change struct {
	typ apiwatch.EventType
	// entry is what to show; nil for a bookmark.
	entry *watch.Entry
	// revision is the event's: for a DELETED that of the delete, or of the
	// change that made the object leave the selection.
	revision int64
	// initialEnd marks the bookmark that ends the initial events (KEP-3157).
	initialEnd bool
}

// cursor is a watch: the initial events, then what changes. It is for one
// goroutine.
type cursor struct {
	s    *Store
	span span
	opts storage.ListOptions
	// asked is the resourceVersion of the request; 0 when unset or "0".
	asked int64

	sub     *watch.Subscription
	initial *initialEvents // nil when all are sent, or none are wanted
	// initialized gives the seats of priority and fairness back. It is called
	// when the last initial event is handed out: until then the watch costs as
	// much as a list.
	initialized func()

	// begin is the revision that the watch starts after, and upTo the one up to which
	// everything has been read.
	begin, upTo int64
	// failed is the error that follows what was already given.
	failed    error
	bookmarks bookmarkSchedule
}

// initialEvents are the objects that exist when a watch starts.
type initialEvents struct {
	snapshot watch.Snapshot
	listing  *listing
	end      bool // whether an annotated bookmark follows
}

// initialBatch is how many initial events are given at a time.
const initialBatch = 128

// cursor begins a watch. What is wrong with the request itself is an error;
// what else keeps it from beginning is what its first next returns, so that it
// becomes an event, as upstream has it.
func (s *Store) cursor(ctx context.Context, key string, opts storage.ListOptions) (*cursor, error) {
	sp, err := s.span(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	asked, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		opts.SendInitialEvents = nil
	}
	c := &cursor{s: s, span: sp, opts: opts, asked: int64(asked)}
	c.initialized = func() { utilflowcontrol.WatchInitialized(ctx) }
	if opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify {
		deadline, _ := ctx.Deadline()
		c.bookmarks = newBookmarkSchedule(s.cfg.Clock, s.cfg.BookmarkInterval, deadline)
	}
	c.failed = c.start(ctx)
	return c, nil
}

func (c *cursor) wantsInitial() bool {
	if c.opts.SendInitialEvents == nil {
		return c.asked == 0
	}
	return *c.opts.SendInitialEvents
}

// start finds out where the watch begins.
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
		if err := s.waitFor(ctx, c.asked); err != nil {
			return err
		}
		if err := c.subscribe(ctx, 0); err != nil {
			return err
		}
		if err := c.startInitial(ctx); err != nil {
			return err
		}
		c.begin = c.initial.snapshot.Revision()
		c.upTo = c.begin
		c.sub.SkipTo(c.begin)
		return nil
	case c.asked > 0:
		if c.asked < s.state(ctx).Compacted {
			return watch.ErrCompacted
		}
		after = c.asked
	default:
		after = max(latest, s.cfg.Feed.Revision())
	}
	c.begin, c.upTo = after, after
	c.initialized()
	return c.subscribe(ctx, after)
}

func (c *cursor) subscribe(ctx context.Context, after int64) (err error) {
	c.sub, err = c.s.cfg.Feed.Subscribe(ctx, c.interest(), after)
	return err
}

func (c *cursor) startInitial(ctx context.Context) error {
	l := &listing{span: c.span, opts: c.opts}
	snapshot, err := c.s.snapshot(ctx, l)
	if err != nil {
		return err
	}
	if snapshot.Revision() == 0 {
		if err := c.s.ensureFirstRevision(ctx); err != nil {
			return err
		}
		return c.startInitial(ctx)
	}
	c.initial = &initialEvents{
		snapshot: snapshot,
		listing:  l,
		end:      c.opts.SendInitialEvents != nil && c.opts.Predicate.AllowWatchBookmarks,
	}
	return nil
}

// interest is the narrowest range of the feed that has all wanted changes.
func (c *cursor) interest() watch.Interest {
	want := watch.Interest{Resource: c.s.resource(), Namespace: c.span.namespace, Name: c.span.name}
	p := &c.opts.Predicate
	if c.span.recursive && p.Field != nil {
		if name, ok := p.Field.RequiresExactMatch("metadata.name"); ok {
			want.Name = name
		}
		if narrowing := c.s.narrowing(p); narrowing != nil {
			want.Narrow = *narrowing
		}
	}
	return want
}

// next waits for changes and returns at least one. After an error that is not
// the context's the cursor is at its end.
func (c *cursor) next(ctx context.Context) ([]change, error) {
	if c.failed != nil {
		return nil, c.fail(ctx, c.failed)
	}
	for c.initial != nil {
		if last, ending := c.s.cfg.Ending.revision(); ending && c.begin > last {
			return nil, watch.ErrClosed // what exists is of another definition
		}
		batch, err := c.nextInitial(ctx)
		if err != nil || len(batch) > 0 {
			return batch, c.fail(ctx, err)
		}
	}
	for {
		events, upTo, err := c.poll(ctx)
		if err != nil {
			return nil, c.fail(ctx, err)
		}
		batch, err := c.choose(ctx, events)
		switch {
		case err != nil && len(batch) == 0:
			return nil, c.fail(ctx, err)
		case err != nil:
			c.failed = err
			return batch, nil
		}
		if c.bookmarks.due() && upTo > c.begin {
			batch = append(batch, change{typ: apiwatch.Bookmark, revision: upTo})
		}
		if len(batch) > 0 {
			return batch, nil
		}
		if len(events) > 0 {
			continue
		}
		if err := c.idle(ctx); err != nil {
			return nil, c.fail(ctx, err)
		}
	}
}

// poll asks for the next events, up to the revision that the watch ends with.
func (c *cursor) poll(ctx context.Context) ([]watch.Event, int64, error) {
	last, ending := c.s.cfg.Ending.revision()
	if ending {
		if c.upTo >= last {
			return nil, 0, watch.ErrClosed
		}
		// Nothing may wake the subscription between its last event and last.
		if err := c.s.cfg.Feed.WaitFor(ctx, last); err != nil {
			return nil, 0, err
		}
	}
	events, upTo, err := c.sub.Poll(ctx)
	if err != nil {
		return nil, 0, err
	}
	c.upTo = upTo
	if ending {
		// What comes later is of another definition's.
		if later := slices.IndexFunc(events, func(ev watch.Event) bool { return ev.Revision > last }); later >= 0 {
			events = events[:later]
		}
		upTo = min(upTo, last)
	}
	return events, upTo, nil
}

// fail gives an error the form that a watcher sees.
func (c *cursor) fail(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, watch.ErrClosed):
		return err
	}
	return c.s.watchError(err)
}

// nextInitial gives some of what existed at the start.
func (c *cursor) nextInitial(ctx context.Context) ([]change, error) {
	in := c.initial
	var batch []change
	var last *watch.Entry
	for e, err := range c.s.selected(ctx, in.listing, c.s.candidates(in.listing, in.snapshot)) {
		if err != nil {
			return nil, readErrorOf(c.s, err, e)
		}
		batch = append(batch, change{typ: apiwatch.Added, entry: e, revision: e.Revision})
		if last = e; len(batch) == initialBatch {
			break
		}
	}
	if len(batch) == initialBatch && in.listing.recursive {
		in.listing.after = &sqlstore.Position{Namespace: last.Namespace, Name: last.Name}
		return batch, nil
	}
	if in.end {
		batch = append(batch, change{typ: apiwatch.Bookmark, revision: in.snapshot.Revision(), initialEnd: true})
	}
	c.initial = nil
	c.initialized()
	return batch, nil
}

func readErrorOf(s *Store, err error, e *watch.Entry) error {
	if e == nil {
		return err
	}
	return readError(err, s.pathOf(e.Key))
}

// choose turns the feed's events into those of a selection.
func (c *cursor) choose(ctx context.Context, events []watch.Event) ([]change, error) {
	c.decodeEvents(ctx, events)
	var batch []change
	p := &c.opts.Predicate
	for _, ev := range events {
		is, err := c.selects(ctx, p, ev.New)
		if err != nil {
			return batch, readErrorOf(c.s, err, ev.New)
		}
		was, err := c.selects(ctx, p, ev.Old)
		if err != nil && ev.New == nil {
			return batch, c.s.deletedError(err, ev.Old)
		} else if err != nil {
			return batch, readErrorOf(c.s, err, ev.Old)
		}
		switch {
		case is && was:
			batch = append(batch, change{typ: apiwatch.Modified, entry: ev.New, revision: ev.Revision})
		case is:
			batch = append(batch, change{typ: apiwatch.Added, entry: ev.New, revision: ev.Revision})
		case was:
			batch = append(batch, change{typ: apiwatch.Deleted, entry: ev.Old, revision: ev.Revision})
		}
	}
	return batch, nil
}

func (c *cursor) selects(ctx context.Context, p *storage.SelectionPredicate, e *watch.Entry) (bool, error) {
	if e == nil {
		return false, nil
	}
	return c.s.matches(ctx, p, e)
}

// deletedError is the error for a deleted object that can't be read.
func (s *Store) deletedError(err error, e *watch.Entry) error {
	var corrupt *corruptError
	if unsafeDeletion() && errors.As(err, &corrupt) {
		return deletedCorrupt(err)
	}
	return readErrorOf(s, err, e)
}

// idle waits until there may be something to do.
func (c *cursor) idle(ctx context.Context) error {
	select {
	case <-c.sub.Ready():
		return nil
	case <-c.bookmarks.timer():
		return nil
	case <-c.s.cfg.Ending.Begun():
		return nil
	case <-c.sub.Done():
		return watch.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *cursor) close() {
	if c.sub != nil {
		c.sub.Close()
	}
	c.bookmarks.stop()
	c.initial = nil
}
