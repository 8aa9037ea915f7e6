package sqlstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Publish is told of changes after they are durable, before their writers are
// answered. It is called by one goroutine and must not block.
type Publish func([]Change)

// Store commits writes to a driver in batches, deletes what expires and compacts
// history. Reads go straight to the driver.
type Store struct {
	Driver
	options Options
	queue   *queue
	// withoutGathering is set by a benchmark; see gather.go.
	withoutGathering bool
	metrics          *metrics
	// writable records how each transaction of the writer ended.
	writable writable
	quota    quota
	// committed receives after revision has moved; it holds one token at most.
	committed chan struct{}
	// revision is the last one that this process committed.
	revision atomic.Int64
	// compacting is held by the call of Compact that is under way: two at a time
	// would leave less time to the writers.
	compacting sync.Mutex
	// clock decides what is old enough to be deleted.
	clock clock
}

// New makes a store; it does nothing until Run.
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
	s.metrics = newMetrics(options.Registerer, queue.len, &s.quota)
	return s
}

// Commit queues one write and waits until it is durable. The returned Change
// has the revision. Errors: ErrExists, ErrNotFound, ErrConflict, ErrInvalid,
// ErrQuota, ErrUnavailable, ErrUnknown, ErrClosed, or the context's when the write left
// the queue before its transaction began (then it did not happen). Once the
// transaction has begun Commit waits for its end, whatever becomes of ctx.
func (s *Store) Commit(ctx context.Context, w Write) (change Change, err error) {
	ctx, end := StartSpan(ctx, "Database Commit", about("COMMIT", w.Key)...)
	defer func() { end(err) }()
	if err := w.Check(); err != nil {
		return Change{}, err
	}
	if err := s.quota.check(&w); err != nil {
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
		<-p.done
	}
	return p.change, p.err
}

// Run commits what is queued, deletes what expires and compacts, until ctx
// ends. It is called once.
func (s *Store) Run(ctx context.Context) error {
	var services sync.WaitGroup
	services.Go(func() { s.write(ctx) })
	services.Go(func() { s.every(ctx, "expire", s.options.ExpireInterval, s.expireDue) })
	services.Go(func() { s.every(ctx, "compact", s.options.CompactInterval, s.retainAlone) })
	if maintainer, ok := s.Driver.(Maintainer); ok {
		services.Go(func() { s.maintain(ctx, maintainer) })
	}
	if sizer, ok := s.Driver.(Sizer); ok && s.options.Quota > 0 {
		services.Go(func() { s.watchQuota(ctx, sizer) })
	}
	if notifier, ok := s.Driver.(Notifier); ok {
		services.Go(func() { s.notify(ctx, notifier) })
	}
	services.Wait()
	return nil
}

// notify tells other processes of commits. For all commits during one notification it
// makes one more, of the last revision.
func (s *Store) notify(ctx context.Context, n Notifier) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.committed:
			// The others poll too, so that a lost hint costs them a delay.
			if err := n.Notify(ctx, s.revision.Load()); err != nil {
				s.options.Logger.Debug("store: hint of a commit is lost", "err", err)
			}
		}
	}
}

// every calls work at each interval until ctx ends. What fails is tried again at the next
// one.
func (s *Store) every(ctx context.Context, name string, interval time.Duration, work func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	isFailing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := work(ctx)
		if err != nil && ctx.Err() == nil && !isFailing {
			// One line an outage, not one an interval.
			s.options.Logger.Warn("store: housekeeping failed, trying again", "work", name, "err", err)
		}
		isFailing = err != nil
	}
}

// withLock calls work on one process at a time; where another works, it does not.
func (s *Store) withLock(ctx context.Context, name string, work func(context.Context) error) error {
	locker, ok := s.Driver.(Locker)
	if !ok {
		return work(ctx)
	}
	_, err := locker.WithLock(ctx, name, work)
	return err
}

func (s *Store) maintain(ctx context.Context, m Maintainer) {
	if err := m.Maintain(ctx); err != nil && ctx.Err() == nil {
		s.options.Logger.Error("store: maintenance of the database ended", "err", err)
	}
}
