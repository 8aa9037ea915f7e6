package sqlstore

import (
	"context"
	"sync"
	"time"
)

// housekeeping deletes expired records, and history that is old.
type housekeeping struct {
	driver  Driver
	options *Options
	metrics *metrics
	commit  func(context.Context, Write) (Change, error)
	// clock tells which records and changes are old enough to be deleted.
	clock clock
	// compacting is held by the compaction that is under way: two at the same time would
	// leave less time to the writers.
	compacting sync.Mutex
	// counts has what retain knows of the numbers of changes; compacting guards it.
	counts map[Resource]changeCount
}

// run deletes until ctx ends.
func (s *housekeeping) run(ctx context.Context) {
	var expiring sync.WaitGroup
	defer expiring.Wait()
	expiring.Go(func() { s.runEvery(ctx, "expire", s.options.ExpireInterval, s.expireDue) })
	// The metrics have the history of a store that was compacted or restored before the
	// first compaction too.
	if err := s.recordState(ctx); err != nil && ctx.Err() == nil {
		s.options.Logger.Warn("store: metrics of the history are missing until the next compaction", "err", err)
	}
	s.runEvery(ctx, "compact", s.options.CompactInterval, func(ctx context.Context) error { return s.withLock(ctx, "compact", s.retain) })
}

// runEvery calls work at each interval until ctx ends. After a failure it calls work again
// at the next interval.
func (s *housekeeping) runEvery(ctx context.Context, name string, interval time.Duration, work func(context.Context) error) {
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
			// This logs one line an outage, not one an interval.
			s.options.Logger.Warn("store: housekeeping failed, trying again", "work", name, "err", err)
		}
		isFailing = err != nil
	}
}

// withLock calls work unless another process holds the lock of that name.
func (s *housekeeping) withLock(ctx context.Context, name string, work func(context.Context) error) error {
	shared, ok := s.driver.(Shared)
	if !ok {
		return work(ctx)
	}
	_, err := shared.WithLock(ctx, name, work)
	return err
}
