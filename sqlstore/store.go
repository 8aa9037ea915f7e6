package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Publish gets changes in the order of their revisions, after they are durable and before
// Commit returns them. One goroutine, that of the writer, calls it. It must not block: no
// write is committed meanwhile. It may keep the slice.
type Publish func([]Change)

// Store commits writes to a driver in batches, deletes expired records and compacts
// history. Reads go straight to the driver.
type Store struct {
	Driver
	options Options
	queue   *queue
	metrics *metrics
	// writable records how the last transaction of the writer ended.
	writable writable
	quota    quota
	// committed receives after the writer has changed revision. Its capacity is 1.
	committed chan struct{}
	// revision is the last one that this process committed.
	revision atomic.Int64
	// housekeeping deletes what is old.
	housekeeping *housekeeping
}

// New makes a store on a driver, which the caller closes after Run has returned. The store
// starts no goroutine before Run.
func New(driver Driver, options Options) *Store {
	options = options.withDefaults()
	queue := newQueue()
	s := &Store{
		Driver:  driver,
		options: options,
		queue:   queue,

		quota:    quota{limit: options.Quota, logger: options.Logger},
		writable: writable{logger: options.Logger, logged: make(map[string]time.Time)},

		committed: make(chan struct{}, 1),
	}
	s.metrics = newMetrics(options.Registerer, driver, queue.len, &s.quota)
	s.housekeeping = &housekeeping{
		turn:   make(chan struct{}, 1),
		driver: driver, options: &s.options, metrics: s.metrics, commit: s.Commit,
		counts: make(map[Resource]changeCount),
	}
	return s
}

// Commit queues one write and waits until it is durable. It returns the change that the
// write has made. Its errors are ErrExists, ErrNotFound, ErrConflict, ErrInvalid, ErrQuota,
// ErrUnavailable, ErrUnknown, ErrDatabase, ErrClosed, and the context's error if ctx ended
// before the transaction of the write began; the write did not happen then. Once the
// transaction has begun, Commit waits for its end even if ctx ends, for outcomeTimeout: it
// then fails with ErrUnknown.
func (s *Store) Commit(ctx context.Context, w Write) (change Change, err error) {
	ctx, end := StartSpan(ctx, "Database Commit", spanAttributes("COMMIT", w.Key)...)
	defer func() { end(err) }()
	if err := w.Check(); err != nil {
		return Change{}, err
	}
	if err := s.checkSpace(&w); err != nil {
		return Change{}, err
	}
	if err := ctx.Err(); err != nil {
		return Change{}, err
	}
	w.Author = w.Author.Clean()
	p := &pending{write: w, done: make(chan struct{})}
	if !s.queue.push(p) {
		return Change{}, ErrClosed
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if s.queue.withdraw(p) {
			return Change{}, ctx.Err()
		}
		select {
		case <-p.done:
		case <-time.After(outcomeTimeout):
			return Change{}, fmt.Errorf("%w: it takes longer than the request may: %w", ErrUnknown, ctx.Err())
		}
	}
	return p.change, p.err
}

// outcomeTimeout is for how long Commit waits for a transaction after its context has ended. A transaction that waits
// for a copy of the database may take as long as the copy's place is away.
const outcomeTimeout = time.Second

// Run commits the queued writes, deletes expired records and compacts history until ctx
// ends. It joins its goroutines and returns nil. It may be called once.
func (s *Store) Run(ctx context.Context) error { return s.run(ctx, yield) }

func (s *Store) run(ctx context.Context, yield func()) error {
	var services sync.WaitGroup
	services.Go(func() {
		if err := s.Driver.Maintain(ctx); err != nil && ctx.Err() == nil {
			s.options.Logger.Error("store: maintenance of the database ended", "err", err)
		}
	})
	services.Go(func() { s.write(ctx, yield) })
	services.Go(func() { s.housekeeping.run(ctx) })
	if s.options.Quota > 0 {
		services.Go(func() { s.watchQuota(ctx) })
	}
	if shared, ok := s.Driver.(Shared); ok {
		services.Go(func() { s.notify(ctx, shared) })
	}
	services.Wait()
	return nil
}

// notify tells other processes of commits, until ctx ends. It sends one hint, of the last
// revision, for all commits that were made while it sent the previous one.
func (s *Store) notify(ctx context.Context, shared Shared) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.committed:
			// The others poll too: a lost hint only delays them.
			if err := shared.Notify(ctx, s.revision.Load()); err != nil {
				s.options.Logger.Debug("store: hint of a commit is lost", "err", err)
			}
		}
	}
}

// Options of a Store. The zero value of each field means its default.
type Options struct {
	// Publish gets the changes that this process makes. By default nobody gets them.
	Publish Publish
	// Logger logs the errors that no caller gets. By default nothing is logged.
	Logger *slog.Logger
	// Registerer registers the byre_store_* metrics. By default they are not registered.
	Registerer prometheus.Registerer

	// Retention is the age at which changes are deleted; the default is 7 days. Negative means
	// never.
	Retention time.Duration
	// RetentionChanges is the number of changes of one resource above which the oldest ones
	// are deleted, whatever their age; the default is 1,000,000 (with values of 5 kB about 5
	// GB of disk). There may be a tenth more. Negative means any number. It does not apply to
	// a resource whose history RetentionFor keeps for longer than Retention.
	RetentionChanges int64
	// RetentionFor says for how long the history of single resources is kept.
	RetentionFor []ResourceRetention
	// Alone says that nobody else writes: compactions leave no time to writers.
	Alone bool
	// CompactInterval is the time between two compactions; the default is 1 minute.
	CompactInterval time.Duration
	// ExpireInterval is the time between two searches for expired records; the default
	// is 1 second.
	ExpireInterval time.Duration
	// RetryInterval is the time between two attempts to write while the database takes
	// no writes; the default is 1 second.
	RetryInterval time.Duration

	// Quota is the number of bytes in use (Driver.Used) from which on writes that make the
	// database larger fail with ErrQuota; 0 means no quota.
	Quota int64
	// QuotaInterval is the time between two measurements of the size; the default is 1
	// second. Writes between two measurements may exceed the quota.
	QuotaInterval time.Duration

	// BatchWrites and BatchBytes bound one transaction; the defaults are 512 writes and
	// 8 MiB of values. (A value of more than BatchBytes gets a transaction of its own.)
	BatchWrites int
	BatchBytes  int
}

func (o Options) withDefaults() Options {
	if o.Publish == nil {
		o.Publish = func([]Change) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Retention = cmp.Or(o.Retention, 7*24*time.Hour)
	o.RetentionChanges = cmp.Or(o.RetentionChanges, 1_000_000)
	o.CompactInterval = cmp.Or(o.CompactInterval, time.Minute)
	o.ExpireInterval = cmp.Or(o.ExpireInterval, time.Second)
	o.RetryInterval = cmp.Or(o.RetryInterval, time.Second)
	o.QuotaInterval = cmp.Or(o.QuotaInterval, time.Second)
	o.BatchWrites = cmp.Or(o.BatchWrites, 512)
	o.BatchBytes = cmp.Or(o.BatchBytes, 8<<20)
	return o
}

// pending is a write in the queue or in its transaction. Its caller waits for done.
// change and err are set before done is closed, and not written afterwards.
type pending struct {
	write  Write
	done   chan struct{}
	change Change
	err    error
}

func (p *pending) finish(c Change, err error) {
	p.change, p.err = c, err
	close(p.done)
}

// current returns the revision at which the write has found its object, or to which it has moved it; 0 if that is not
// known.
func (p *pending) current() int64 {
	if conflict, ok := errors.AsType[*ConflictError](p.err); ok {
		return conflict.Current
	}
	if p.write.Op == Delete {
		return 0
	}
	return p.change.Revision
}

// queue holds the writes whose transaction has not begun, in order of arrival.
type queue struct {
	mu      sync.Mutex
	waiting []*pending
	closed  bool
	// arrived receives while there are writes in waiting that take has not seen. Its
	// capacity is 1.
	arrived chan struct{}
	// keys has the writes of the batch that take has made, until failConflicts, and required the keys
	// of their Requirements. They are fields so that take uses their memory again.
	keys     map[Key]*pending
	required map[Key]struct{}
}

func newQueue() *queue {
	return &queue{arrived: make(chan struct{}, 1), keys: make(map[Key]*pending), required: make(map[Key]struct{})}
}

// push appends a write. It returns false if the queue is closed.
func (q *queue) push(p *pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, p)
	q.signal()
	return true
}

// withdraw removes p from the queue. It returns false if p's transaction has begun.
func (q *queue) withdraw(p *pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, p)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// take moves the next writes for one transaction from the queue to batch: the oldest ones,
// up to a number of writes and a size of their values in bytes, at least one. The writes of
// a batch have different keys, and none writes what another requires: a write that does not
// fit stays in its place in the queue.
func (q *queue) take(batch []*pending, writes, size int) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.required)
	kept := q.waiting[:0]
	full := false
	for _, p := range q.waiting {
		if !full {
			full = len(batch) == writes || len(batch) > 0 && len(p.write.Value) > size
		}
		if full || !q.fits(&p.write) {
			kept = append(kept, p)
			continue
		}
		q.keys[p.write.Key] = p
		if p.write.Requires != nil {
			q.required[p.write.Requires.Key] = struct{}{}
		}
		size -= len(p.write.Value)
		batch = append(batch, p)
	}
	clear(q.waiting[len(kept):])
	q.waiting = kept
	if len(kept) > 0 {
		q.signal()
	}
	return batch
}

// failConflicts fails the writes that replace an earlier revision of an object than that at which the last batch has
// found or left it. In a transaction each of them would fail too, and only one a transaction, while their clients read
// the object and try again: writes of one object that come a little faster than that would never end.
func (q *queue) failConflicts() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(p *pending) bool {
		last := q.keys[p.write.Key]
		if last == nil || p.write.Op == Create || p.write.Replaces >= last.current() {
			return false
		}
		p.finish(Change{}, &ConflictError{Current: last.current()})
		return true
	})
	clear(q.keys) // so that their values can be freed
}

// fits reports whether take may add a write to its batch. PostgreSQL checks all preconditions
// of a batch against the state before it.
func (q *queue) fits(w *Write) bool {
	_, written := q.keys[w.Key]
	_, required := q.required[w.Key]
	if w.Requires != nil && !written {
		_, written = q.keys[w.Requires.Key]
	}
	return !written && !required
}

// close makes push refuse new writes, and returns the queued ones.
func (q *queue) close() []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	waiting := q.waiting
	q.waiting = nil
	return waiting
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

func (q *queue) signal() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

// write is the writer: it commits one batch after the other until ctx ends. Writes that
// arrive while a batch is being committed wait in the queue for the next batch. When ctx
// ends, write fails the queued writes with ErrClosed.
func (s *Store) write(ctx context.Context, yield func()) {
	defer func() {
		for _, p := range s.queue.close() {
			p.finish(Change{}, ErrClosed)
		}
	}()
	b := &batch{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.queue.arrived:
		case <-s.retryDue():
			s.tryWrite(context.WithoutCancel(ctx))
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.queue.gather(s.options.BatchWrites, time.Now, yield)
		b.take(s.queue, s.options.BatchWrites, s.options.BatchBytes)
		// The end of ctx does not cancel a transaction that has begun.
		s.commit(context.WithoutCancel(ctx), b)
		s.queue.failConflicts()
		b.release()
	}
}

// batch has the writes of one transaction. Its memory is used again for the next one.
// Invariant: writes[i] is the write of pending[i].
type batch struct {
	pending []*pending
	writes  []Write
}

// take fills the batch from the queue; see queue.take.
func (b *batch) take(q *queue, writes, size int) {
	b.pending = q.take(b.pending[:0], writes, size)
	b.writes = b.writes[:0]
	for _, p := range b.pending {
		b.writes = append(b.writes, p.write)
	}
}

// release drops the references to the writes, so that their values can be freed.
func (b *batch) release() {
	clear(b.pending)
	clear(b.writes)
}

// commit commits a batch in one transaction and finishes its writes.
func (s *Store) commit(ctx context.Context, b *batch) {
	if len(b.pending) == 0 {
		return
	}
	start := time.Now()
	outcomes, err := s.Driver.Commit(ctx, b.writes)
	s.metrics.observeCommit(len(b.writes), time.Since(start), err)
	s.recordCommit(err)
	switch {
	case err == nil || outcomes != nil:
		s.finish(b.pending, outcomes, err)
	case errors.Is(err, ErrDiskFull) && s.inReserve() && b.failGrowing(err):
		// There is space now for the writes that are left, such as deletes.
		s.commit(ctx, b)
	case len(b.pending) == 1 || isOutage(err) || errors.Is(err, ErrClosed):
		for _, p := range b.pending {
			p.finish(Change{}, err)
		}
	default:
		// The database refused the batch because of a write that Write.Check should
		// not have accepted. Halving the batch finds that write in few transactions, and
		// commits the others.
		s.options.Logger.Error("store: the database refused a batch, committing its halves", "writes", len(b.pending), "err",
			err)
		half := len(b.pending) / 2
		s.commit(ctx, &batch{pending: b.pending[:half], writes: b.writes[:half]})
		s.commit(ctx, &batch{pending: b.pending[half:], writes: b.writes[half:]})
	}
}

// failGrowing fails the writes of a batch that make the database larger, and takes them from it. It
// reports whether it has taken some and left others.
func (b *batch) failGrowing(err error) bool {
	var rest batch
	for i, p := range b.pending {
		if b.writes[i].Op == Delete || !b.writes[i].Grows {
			rest.pending, rest.writes = append(rest.pending, p), append(rest.writes, b.writes[i])
		}
	}
	if len(rest.pending) == 0 || len(rest.pending) == len(b.pending) {
		return false
	}
	for i, p := range b.pending {
		if b.writes[i].Op != Delete && b.writes[i].Grows {
			p.finish(Change{}, err)
		}
	}
	*b = rest
	return true
}

// finish publishes the changes of a batch that was committed, then lets its Commits return: with err, if it is not nil.
func (s *Store) finish(batch []*pending, outcomes []Outcome, err error) {
	// The slice is a new one, because Publish may keep it.
	changes := make([]Change, 0, len(batch))
	for i, p := range batch {
		if p.err = cmp.Or(err, outcomes[i].Err); outcomes[i].Err == nil {
			p.change = p.write.ChangeOf(outcomes[i])
			changes = append(changes, p.change)
		}
	}
	if len(changes) > 0 {
		s.revision.Store(changes[len(changes)-1].Revision)
		s.metrics.revision.Set(float64(s.revision.Load()))
		s.options.Publish(changes)
	}
	for _, p := range batch {
		close(p.done)
	}
	if len(changes) > 0 {
		select {
		case s.committed <- struct{}{}:
		default:
		}
	}
}

// ChangeOf returns the change that the write has made, with an outcome without an error.
func (w *Write) ChangeOf(o Outcome) Change {
	c := Change{
		Op: w.Op, Revision: o.Revision, Time: o.Time, Author: w.Author, Attributes: w.Attributes,
		New: Record{Key: w.Key, Created: o.Created, Revision: o.Revision},
	}
	if w.Op != Create {
		c.Old = &Record{Key: w.Key, UID: o.UID, Created: o.Created, Revision: w.Replaces}
		c.OldBytes = o.OldBytes
	}
	if w.Op == Delete {
		c.New.UID = o.UID
		return c
	}
	c.New.UID, c.New.Encoding, c.New.Expires, c.New.Value = w.UID, w.Encoding, w.Expires, w.Value
	return c
}

// Gathering: before it begins a transaction, the writer yields the processor to
// goroutines that are about to queue a write.
//
// What upstream does: an etcd server appends each proposal to its Raft log when it comes; what
// arrives during an fsync shares the next one. Nothing waits on purpose.
//
// What is done instead: a push makes the writer runnable, and Go's scheduler runs a
// goroutine that was just made runnable before all others of its processor. Where requests
// keep every processor busy, each write would get a transaction and an fsync of its own,
// while other writers wait for a processor. So the writer yields again and again, until a
// yield has brought no further write.
//
// What it relies on: runtime.Gosched puts the caller at the end of the global run queue,
// behind every goroutine that can run. If that changes, batches get smaller and
// TestStore_BusyWritersShareTransactions fails; nothing else breaks.
//
// What it earns: on SQLite and two busy processors, 11 to 14 % of the processor time of a
// write with 8 writers, and 4 to 6 % with 64 (BenchmarkGather). A single writer pays one call
// of an idle scheduler.

// gatherTime bounds gathering. It is about the time that a transaction's fsync takes.
const gatherTime = 5 * time.Millisecond

// yield gives the processor to every other goroutine that can run.
func yield() { runtime.Gosched() }

// gather calls yield for as long as each call brings further writes, and until the queue
// has a number of writes. Where a processor is idle, or nobody else writes, it returns
// after one call. A write never waits for much longer than gatherTime, however many others
// come.
func (q *queue) gather(writes int, clock func() time.Time, yield func()) {
	end := clock().Add(gatherTime)
	for before, now := 0, q.len(); before < now && now < writes && clock().Before(end); {
		yield()
		before, now = now, q.len()
	}
}

// tracerName is the instrumentation scope of the store's spans.
const tracerName = "byre/sqlstore"

// StartSpan begins a child of the context's span, with that span's provider, and returns
// the function that ends it. If the context's span is not recorded it does nothing.
func StartSpan(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func(error) {}
	}
	ctx, span := parent.TracerProvider().Tracer(tracerName).Start(ctx, name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	return ctx, func(err error) {
		if err != nil {
			// The error's text stays out of the span: it may hold SQL and addresses,
			// which are for the operator's log alone.
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// spanAttributes returns the attributes of a span: the SQL command and the key.
func spanAttributes(operation string, key Key) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("db.operation.name", operation),
		attribute.String("k8s.group", key.Group),
		attribute.String("k8s.resource", key.Resource),
		attribute.String("k8s.namespace", key.Namespace),
		attribute.String("k8s.name", key.Name),
	}
}

// Get calls the driver's Get in a span.
func (s *Store) Get(ctx context.Context, key Key) (record Record, revision int64, err error) {
	ctx, end := StartSpan(ctx, "Database Get", spanAttributes("SELECT", key)...)
	defer func() { end(err) }()
	return s.Driver.Get(ctx, key)
}

// List calls the driver's List in a span.
func (s *Store) List(ctx context.Context, q Query, yield func(Record) error) (listed ListResult, err error) {
	ctx, end := StartSpan(ctx, "Database List",
		spanAttributes("SELECT", Key{Group: q.Group, Resource: q.Resource, Namespace: q.Namespace})...)
	defer func() { end(err) }()
	return s.Driver.List(ctx, q, yield)
}
