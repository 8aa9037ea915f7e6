package sqlstore

import (
	"context"
	"errors"
	"fmt"
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
	// turn has a value while a chunk of a compaction is under way, and in the pause after it. Its
	// capacity is 1: two compactions at the same time take turns, and leave as much time to the writers as one.
	turn chan struct{}
	// counts has what retain knows of the numbers of changes. Only retain uses it.
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

// maxCandidates is how many records expiredSince examines after the database's clock was
// set forward.
const maxCandidates = 10_000

// readClock reads the database's clock, and logs when it was set forward; see clock.
func (s *housekeeping) readClock(ctx context.Context) (State, times, error) {
	state, t, err := s.clock.read(ctx, s.driver.State)
	if t.jumped {
		s.options.Logger.Warn("store: the database's clock was set forward; what was written before is kept for as long as it should be",
			"by", t.now.Sub(t.old), "revision", t.jump)
	}
	return state, t, err
}

// expireDue deletes expired records, on one process at a time. Where there are none it
// takes no lock, because on PostgreSQL a lock occupies a connection.
func (s *housekeeping) expireDue(ctx context.Context) error {
	_, t, err := s.readClock(ctx)
	if err != nil {
		return err
	}
	expired, err := s.driver.Expired(ctx, t.now, 1)
	if err != nil {
		return fmt.Errorf("find expired records: %w", err)
	}
	if len(expired) == 0 && t.jump == 0 {
		return nil
	}
	return s.withLock(ctx, "expire", s.expire)
}

// expire deletes expired records, one batch after the other, until none is left. It stops
// after a batch of which it could delete none.
func (s *housekeeping) expire(ctx context.Context) error {
	for {
		_, t, err := s.readClock(ctx)
		if err != nil {
			return err
		}
		expired, err := s.driver.Expired(ctx, t.old, s.options.BatchWrites)
		if err == nil && t.jump > 0 {
			expired, err = s.expiredSince(ctx, t, expired)
		}
		if err != nil {
			return fmt.Errorf("find expired records: %w", err)
		}
		deleted, err := s.deleteExpired(ctx, expired)
		if err != nil || len(expired) < s.options.BatchWrites || deleted == 0 {
			return err
		}
	}
}

// expiredSince appends to expired the records that were written after the database's clock
// was set forward, and have expired by that clock. It ends the distinction of clock when
// there are no records left that would expire too early without it, and no changes that
// would be compacted too early.
func (s *housekeeping) expiredSince(ctx context.Context, t times, expired []Record) ([]Record, error) {
	candidates, err := s.driver.Expired(ctx, t.now, maxCandidates)
	if err != nil {
		return nil, err
	}
	mayBeEarly := len(candidates) == maxCandidates // there may be more than were examined
	for _, r := range candidates {
		switch {
		case r.Revision > t.jump && len(expired) < s.options.BatchWrites:
			expired = append(expired, r)
		case r.Expires.After(t.old):
			mayBeEarly = true
		}
	}
	if mayBeEarly {
		return expired, nil
	}
	histories, err := s.driver.Histories(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range histories {
		age, _ := s.options.retentionOf(GroupResource{h.Group, h.Resource.Resource})
		if age >= 0 && 0 < h.First && h.First <= t.jump {
			return expired, nil
		}
	}
	s.clock.forget(t.jump)
	return expired, nil
}

// deleteExpired deletes each record unless it has changed since it was read. deleted is how
// many of them do not exist any more in the state that was read.
func (s *housekeeping) deleteExpired(ctx context.Context, expired []Record) (deleted int, err error) {
	var deletes sync.WaitGroup
	errs := make([]error, len(expired))
	for i, r := range expired {
		deletes.Go(func() {
			_, errs[i] = s.commit(ctx, Write{
				Op: Delete, Key: r.Key, Replaces: r.Revision, UID: r.UID,
				Author: Author{User: "system:byre", Verb: "expire"},
			})
		})
	}
	deletes.Wait()
	for _, err := range errs {
		switch {
		case err == nil:
			s.metrics.expired.Inc()
			deleted++
		case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
			deleted++ // a client has updated or deleted it meanwhile
		default:
			return deleted, fmt.Errorf("delete expired records: %w", err)
		}
	}
	return deleted, nil
}
