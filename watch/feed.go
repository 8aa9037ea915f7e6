package watch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"byre/sqlstore"
)

var (
	// ErrCompacted means that the store's history no longer has the changes after the
	// requested revision, or that the store was restored meanwhile.
	ErrCompacted = sqlstore.ErrCompacted
	// ErrClosed means that the feed has stopped.
	ErrClosed = errors.New("feed is closed")
)

// Source is the part of a sqlstore.Driver that the feed reads. If the Source is a
// sqlstore.Exclusive too, only this process writes to the store: the feed does not poll
// it, and Latest costs no round trip.
type Source interface {
	List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error)
	Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error)
	State(ctx context.Context) (sqlstore.State, error)
	Compacted(ctx context.Context, of sqlstore.Resource) (int64, error)
	Usage(ctx context.Context) (sqlstore.Usage, error)
}

// Options of a Feed. The zero value is right for every database.
type Options struct {
	// Interval is the time between two polls of the store; 0 means a second. It bounds the
	// delay of a change of another process for which no hint arrives.
	Interval time.Duration
	// RingEvents and RingBytes bound the events in memory for each resource, by number
	// and by the bytes of replaced values; 0 means 4,096 and 8 MiB.
	RingEvents int
	RingBytes  int
	// StateBytes is how many bytes of values may be in memory before the feed unloads
	// resources that nobody watches, those first that were not read for longest; 0 means
	// any number.
	StateBytes int
	// Resident are resources that are not unloaded once they were read, because requests must be answered from
	// memory while the store is away.
	Resident []sqlstore.Resource
	// CheckInterval is the time between two checks of what is in memory; 0 means a minute. What is not compressed yet
	// is; representations that nobody has read for three checks are dropped; a resource that nobody has read for
	// ten is unloaded.
	CheckInterval time.Duration
	// RepresentationBytes is the budget of the representations of records in bytes
	// (Representations); 0 means DefaultRepresentationBytes.
	RepresentationBytes int64
	// Logger logs alarms and outages; nil means slog.Default().
	Logger *slog.Logger
	// Registerer registers the byre_watch_* metrics; nil means that they are not
	// registered.
	Registerer prometheus.Registerer
}

const (
	defaultInterval   = time.Second
	checkInterval     = time.Minute
	defaultRingEvents = 4096
	defaultRingBytes  = 8 << 20

	// pageChanges and pageBytes bound the changes of one read from the store, by number
	// and by the bytes of their values.
	pageChanges = 256
	pageBytes   = 2 << 20
	// maxPending bounds tail.pending. The tail drops further events and reads them from
	// the store later.
	maxPending = 4096
	// unreadChecks is the number of checks between two calls of Representations.DropUnused.
	unreadChecks = 3
)

// Feed follows one store. Its methods are those of its parts, each of which owns its state and its
// lock. They are safe for concurrent use.
//
// Who takes several locks takes them in this order: tail.mu, state.mu, watcherGroup.mu; and each of
// the other parts' last.
type Feed struct {
	*lifecycle
	*progress      // the revision applied, and who waits for one
	*readIndex     // the store's last revision
	*usages        // objects and bytes of each resource
	*state         // current records
	*subscriptions // changes
	*tail          // applies the store's changes
	changePages    *changePages
	// representations has the representations of all records: those in memory, and those
	// that readers have read from the store.
	representations *Representations
}

// New makes a Feed, which starts no goroutine before Run.
func New(source Source, opts Options) *Feed {
	opts.Interval = cmp.Or(opts.Interval, defaultInterval)
	opts.CheckInterval = cmp.Or(opts.CheckInterval, checkInterval)
	opts.RingEvents = cmp.Or(opts.RingEvents, defaultRingEvents)
	opts.RingBytes = cmp.Or(opts.RingBytes, defaultRingBytes)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	_, isSoleWriter := source.(sqlstore.Exclusive)
	f := &Feed{
		lifecycle:       &lifecycle{started: make(chan struct{}), done: make(chan struct{})},
		representations: NewRepresentations(opts.RepresentationBytes),
	}
	f.progress = &progress{lifecycle: f.lifecycle, isSoleWriter: isSoleWriter}
	f.progress.generation.Store(&generation{ended: make(chan struct{})})
	f.readIndex = &readIndex{source: source, lifecycle: f.lifecycle, progress: f.progress}
	f.usages = &usages{source: source, opts: opts, lifecycle: f.lifecycle, progress: f.progress,
		counted: make(chan struct{})}
	f.state = newState(source, opts, f.lifecycle, f.progress, f.usages)
	f.changePages = newChangePages(source, opts.Logger, f.lifecycle, f.progress)
	f.subscriptions = &subscriptions{lifecycle: f.lifecycle, changePages: f.changePages, state: f.state,
		wakeInterval: defaultWakeInterval}
	f.tail = &tail{
		source: source, opts: opts, metrics: newMetrics(opts.Registerer, f.state),
		lifecycle: f.lifecycle, progress: f.progress, readIndex: f.readIndex, usages: f.usages, changePages: f.changePages,
		state:  f.state,
		behind: make(chan struct{}, 1),
	}
	f.progress.request = f.tail.hint
	f.representations.grown = f.state.grow
	f.representations.Register(opts.Registerer)
	return f
}

// Representations returns the cache of the representations of records.
func (f *Feed) Representations() *Representations { return f.representations }

// Run follows the store until ctx ends. Then it joins its goroutines and returns nil. It first
// reads the store's state, and tries again while that fails. It may be called once.
func (f *Feed) Run(ctx context.Context) error {
	f.lifecycle.running = ctx
	if f.begin(ctx) {
		f.spawn(f.tail.run)
		f.spawn(f.listen)
		f.spawn(f.wakeWatchers)
		f.spawn(f.checkMemory)
		<-ctx.Done()
	}
	f.stop()
	return nil
}

// checkMemory unloads unread records, pages of history and representations, and compresses what stays, until ctx ends.
func (f *Feed) checkMemory(ctx context.Context) {
	ticker := time.NewTicker(f.state.opts.CheckInterval)
	defer ticker.Stop()
	for check := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-f.state.grown:
		case <-ticker.C:
			f.unload()
			f.changePages.dropUnused()
			if check++; check%unreadChecks == 0 {
				f.representations.DropUnused()
			}
		}
		f.compress(ctx)
	}
}

// lifecycle starts and stops a feed once, and owns its goroutines.
type lifecycle struct {
	// started is closed when the feed has taken over the store's state for the first time,
	// done when Run is about to return.
	started, done chan struct{}
	// running is the context of Run. Run sets it before it closes started, and nobody
	// writes it afterwards.
	running context.Context
	group   sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

// spawn runs a goroutine that Run joins, with Run's context. It returns false, and runs nothing,
// if the feed is closed.
func (l *lifecycle) spawn(do func(context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.group.Go(func() { do(l.running) })
	return true
}

// stop ends all calls of wait, and joins the goroutines.
func (l *lifecycle) stop() {
	l.mu.Lock()
	l.closed = true
	close(l.done)
	l.mu.Unlock()
	l.group.Wait()
}

// wait waits for a value of c, or for c to be closed. It fails with ErrClosed when the feed
// stops.
func (l *lifecycle) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
	}
	select {
	case <-c:
		return nil
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitStart waits until the feed has taken over the store's state for the first time.
func (l *lifecycle) awaitStart(ctx context.Context) error { return l.wait(ctx, l.started) }

// signal sends to c, whose capacity is 1, unless it is full: a second signal before the first is
// received would change nothing.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for a time. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
