package storage

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/clock"

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

// changeError is the error of an event whose object, which may be the last state of one that was deleted, cannot be
// read.
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

// EncodedEvent is one event of a watch. Where Type is Bookmark, Object is an empty
// object with a resourceVersion.
type EncodedEvent struct {
	Type   apiwatch.EventType
	Object encoding.Encoded
}

// EncodedWatch is a watch in a Format. It has no goroutine and no buffer, so a caller
// that does not call Next costs the other watches nothing. Only one goroutine may use
// it. The caller must close it.
type EncodedWatch struct{ cursor *cursor }

// WatchEncoded is Watch in a Format. It returns the errors of the request, except those
// of its resourceVersion, which the first Next returns. The watch ends at the context's
// deadline, if there is one, and sends a bookmark shortly before.
func (s *Store) WatchEncoded(
	ctx context.Context, key string, opts storage.ListOptions, f *encoding.Format,
) (EncodedWatch, error) {
	c, err := s.cursor(ctx, key, opts, f)
	if err != nil {
		return EncodedWatch{}, err
	}
	return EncodedWatch{c}, nil
}

// Close ends the subscription to the feed.
func (w EncodedWatch) Close() { w.cursor.close() }

// Next waits for events and returns at least one; a bookmark that is due is an event.
// Errors: ctx's own; io.EOF when the server stops; an API status that ends the watch and
// that the caller sends as its ERROR event, such as 410 Expired.
func (w EncodedWatch) Next(ctx context.Context) ([]EncodedEvent, error) {
	events, err := w.next(ctx)
	if errors.Is(err, watch.ErrClosed) {
		err = io.EOF
	}
	return events, err
}

func (w EncodedWatch) next(ctx context.Context) ([]EncodedEvent, error) {
	c := w.cursor
	if len(c.pending) == 0 {
		changes, err := c.next(ctx)
		if err != nil {
			return nil, err
		}
		c.pending = changes
	}
	events := make([]EncodedEvent, 0, len(c.pending))
	for size := 0; len(c.pending) > 0 && size < aheadBytes; { // what a client does not read holds no more
		ch := c.pending[0]
		obj, err := c.encodedChange(ctx, ch)
		if err != nil {
			if c.pending = nil; len(events) == 0 {
				return nil, c.watcherError(ctx, err)
			}
			c.nextError = err
			break
		}
		c.pending = c.pending[1:]
		events = append(events, EncodedEvent{ch.typ, obj})
		size += len(obj.Body())
	}
	return events, nil
}

func (c *cursor) encodedChange(ctx context.Context, ch change) (encoding.Encoded, error) {
	s, f := c.s.serializer, c.format
	if ch.typ == apiwatch.Bookmark {
		return s.Bookmark(ctx, f, ch.revision, ch.initialEnd)
	}
	represent := s.Represent
	if ch.initial {
		represent = s.RepresentItem
	}
	r, err := represent(ctx, ch.entry, f)
	if err != nil {
		return encoding.Encoded{}, c.changeError(ctx, err, ch.entry, ch.typ == apiwatch.Deleted)
	}
	return s.Encoded(f, r, ch.entry, ch.revision), nil
}

func (c *cursor) decodedChange(ctx context.Context, ch change) (runtime.Object, error) {
	s := c.s.serializer
	if ch.typ == apiwatch.Bookmark {
		return s.NewBookmark(ch.revision, ch.initialEnd)
	}
	// Each watch gets an object of its own, because registries decorate it in place.
	obj, err := s.Object(ctx, ch.entry)
	if err != nil {
		return nil, c.changeError(ctx, err, ch.entry, ch.typ == apiwatch.Deleted)
	}
	return obj, versioner.UpdateObject(obj, uint64(ch.revision))
}

// EventStream implements apimachinery's watch.Interface for what sends its events in a goroutine.
type EventStream struct {
	cancel context.CancelFunc
	result chan apiwatch.Event
}

// resultBuffer is the number of events that the goroutine may be ahead of the reader.
// It saves a reader that keeps up some switches between goroutines. The events of a
// slow reader wait in the feed.
const resultBuffer = 16

// NewEventStream makes an EventStream, and the context that ends with it. The caller runs it.
func NewEventStream(ctx context.Context) (EventStream, context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	return EventStream{cancel, make(chan apiwatch.Event, resultBuffer)}, ctx
}

// Stop implements watch.Interface.
func (s EventStream) Stop() { s.cancel() }

// ResultChan implements watch.Interface.
func (s EventStream) ResultChan() <-chan apiwatch.Event { return s.result }

// Send sends an event. It fails if ctx ends before.
func (s EventStream) Send(ctx context.Context, event apiwatch.Event) error {
	select {
	case s.result <- event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run calls send with ctx, which NewEventStream has returned, and ends the watch with the error that send returns. It
// sends the error, unless the reader or the server has ended the watch.
func (s EventStream) Run(ctx context.Context, send func(context.Context) error) {
	defer close(s.result)
	defer s.cancel()
	err := send(ctx)
	var status apierrors.APIStatus
	if ctx.Err() == nil && errors.As(err, &status) {
		answer := status.Status()
		_ = s.Send(ctx, apiwatch.Event{Type: apiwatch.Error, Object: &answer}) // the context has ended
	}
}

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	c, err := s.cursor(ctx, key, opts, nil)
	if err != nil {
		return nil, err
	}
	stream, ctx := NewEventStream(ctx)
	go stream.Run(ctx, func(ctx context.Context) error {
		defer c.close()
		for {
			changes, err := c.next(ctx)
			if err != nil {
				return err
			}
			for _, ch := range changes {
				obj, err := c.decodedChange(ctx, ch)
				if err != nil {
					return c.watcherError(ctx, err)
				}
				if err := stream.Send(ctx, apiwatch.Event{Type: ch.typ, Object: obj}); err != nil {
					return err
				}
			}
		}
	})
	return stream, nil
}

// preTimeout is how long before the end of a watch its last bookmark is due; upstream's
// watch cache has the same value.
const preTimeout = 2 * time.Second

// BookmarkSchedule says when the next bookmark of a watch is due: after an
// interval, and shortly before the watch ends. The zero value is never due.
type BookmarkSchedule struct {
	clock    clock.Clock
	interval time.Duration
	deadline time.Time // zero: none
	next     time.Time // zero: no more
	tick     clock.Timer
}

// NewBookmarkSchedule returns the schedule of a watch; without a deadline if it is zero.
func NewBookmarkSchedule(c clock.Clock, interval time.Duration, deadline time.Time) BookmarkSchedule {
	b := BookmarkSchedule{clock: c, interval: interval, deadline: deadline}
	b.plan(c.Now())
	return b
}

func (b *BookmarkSchedule) plan(now time.Time) {
	b.next = now.Add(b.interval)
	if last := b.deadline.Add(-preTimeout); !b.deadline.IsZero() && last.Before(b.next) {
		b.next = last
	}
	if !b.next.After(now) {
		b.next = time.Time{}
	}
}

// Due reports whether a bookmark is due, and plans the next one if so.
func (b *BookmarkSchedule) Due() bool {
	if b.next.IsZero() {
		return false
	}
	now := b.clock.Now()
	if now.Before(b.next) {
		return false
	}
	b.plan(now)
	return true
}

// Timer fires when the next bookmark is due.
func (b *BookmarkSchedule) Timer() <-chan time.Time {
	if b.next.IsZero() {
		return nil
	}
	wait := b.next.Sub(b.clock.Now())
	if b.tick == nil {
		b.tick = b.clock.NewTimer(wait)
	} else {
		b.tick.Reset(wait)
	}
	return b.tick.C()
}

// Stop stops the timer.
func (b *BookmarkSchedule) Stop() {
	if b.tick != nil {
		b.tick.Stop()
	}
}

// WatchTermination ends the watches of all Stores that have it in their Config, those that are
// open and those that begin later. To a client, such a watch ends like any other,
// without an error.
type WatchTermination struct {
	once  sync.Once
	begun chan struct{}
	// last is the revision up to which the watches still deliver events. It is set before
	// begun is closed.
	last int64
}

// NewWatchTermination returns a WatchTermination that has not begun.
func NewWatchTermination() *WatchTermination { return &WatchTermination{begun: make(chan struct{})} }

// After ends each watch when it has delivered all events up to a revision, which a watch of a
// resource that is gone must: its clients can't resume. With 0 all watches end at once, and their
// clients resume after the last event that they have received. Only the first call has an effect.
func (t *WatchTermination) After(revision int64) {
	t.once.Do(func() {
		t.last = revision
		close(t.begun)
	})
}

// Begun returns a channel that is closed when the watches are to end; nil for a nil
// WatchTermination.
func (t *WatchTermination) Begun() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.begun
}

// revision returns last, and whether the watches are to end.
func (t *WatchTermination) revision() (last int64, begun bool) {
	select {
	case <-t.Begun():
		return t.last, true
	default:
		return 0, false
	}
}
