package sqlstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
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
		clock: clock{reading: make(chan struct{}, 1)}, counts: make(map[Resource]changeCount),
	}
	return s
}

// Commit queues one write and waits until it is durable. It returns the change that the
// write has made. Its errors are ErrExists, ErrNotFound, ErrConflict, ErrInvalid, ErrQuota,
// ErrUnavailable, ErrReadOnly, ErrUnknown, ErrDatabase, ErrClosed, and the context's error if ctx ended
// before the transaction of the write began; the write did not happen then. Once the
// transaction has begun, Commit waits for its end even if ctx ends, for outcomeTimeout: it
// then fails with ErrUnknown.
func (s *Store) Commit(ctx context.Context, w Write) (change Change, err error) {
	ctx, end := StartSpan(ctx, "Database Commit", spanAttributes("COMMIT", w.Key)...)
	defer func() { end(err) }()
	if err := w.Check(); err != nil {
		return Change{}, err
	}
	if s.options.ReadOnly {
		return Change{}, ErrReadOnly
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

// outcomeTimeout is for how long Commit waits for a transaction after its context has ended. A transaction that waits for a
// copy of the database may take as long as the copy's place is away.
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
	if s.options.ReadOnly {
		s.housekeeping.runEvery(ctx, "metrics of the history", s.options.CompactInterval, s.housekeeping.recordState)
		services.Wait()
		return nil
	}
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
