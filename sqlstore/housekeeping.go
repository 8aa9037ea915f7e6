package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	s.runEvery(ctx, "compact", s.options.CompactInterval, func(ctx context.Context) error {
		return s.withLock(ctx, "compact", s.retain)
	})
}

// runEvery calls work at each interval until ctx ends. After a failure it calls work again
// at the next interval.
func (s *housekeeping) runEvery(
	ctx context.Context, name string, interval time.Duration, work func(context.Context) error,
) {
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

// readClock reads the database's clock, and logs when it was set forward; see clock.
func (s *housekeeping) readClock(ctx context.Context) (State, times, error) {
	state, t, err := s.clock.read(ctx, s.driver.State)
	if t.jumped {
		s.options.Logger.Warn(
			"store: the database's clock was set forward; what was written before is kept for as long as it should be",
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
	expired, err := s.driver.Expired(ctx, time.Time{}, t.now, 1)
	if err != nil {
		return fmt.Errorf("find expired records: %w", err)
	}
	if len(expired) == 0 {
		return nil
	}
	return s.withLock(ctx, "expire", s.expire)
}

// maxCandidates is how many records expire examines after the database's clock was set forward.
const maxCandidates = 10_000

// expire deletes expired records, one batch after the other, until none is left. It stops
// after a batch of which it could delete none.
func (s *housekeeping) expire(ctx context.Context) error {
	for {
		_, t, err := s.readClock(ctx)
		if err != nil {
			return err
		}
		limit := s.options.BatchWrites
		if t.jump > 0 {
			limit = max(limit, maxCandidates)
		}
		expired, err := s.driver.Expired(ctx, time.Time{}, t.now, limit)
		if err != nil {
			return fmt.Errorf("find expired records: %w", err)
		}
		expired = slices.DeleteFunc(expired, func(r Record) bool { return r.Revision <= t.jump && r.Expires.After(t.old) })
		expired = expired[:min(len(expired), s.options.BatchWrites)]
		deleted, err := s.deleteExpired(ctx, expired)
		if err != nil || len(expired) < s.options.BatchWrites || deleted == 0 {
			return err
		}
	}
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

// clockTolerance is how much more time may pass on the database's clock than on this
// process's clock, between two readings, before that counts as a jump.
const clockTolerance = 10 * time.Second

// maxReading is how long a reading of the database's clock may take. What was read longer ago
// does not say whether the clock was set. It must be less than clockTolerance, by which a reading
// that takes so long could otherwise look like a jump.
const maxReading = clockTolerance / 2

// clock tells which records and changes have reached an age. It uses the database's
// clock, which stamps the records, and compares it with this process's monotonic clock,
// which can't be set.
//
// Invariant: setting the database's clock forward does not make a record expire, or a
// change be compacted, before its time. clock keeps two times for that. What was written
// up to revision jump was stamped before the clock was set forward: its age is the
// difference to old, which continues the clock of before. The age of what was written later is
// the difference to now, the clock as it is. Without it, a clock that is wrong for a minute
// would delete every Event and all history. Setting the clock back only makes records last
// longer.
type clock struct {
	mu sync.Mutex
	// began is this process's time at the first reading.
	began time.Time
	// old is the time by which what was written up to revision jump is judged, as of the last
	// reading; at is this process's time of that reading. jump is 0 unless the database's
	// clock was set forward.
	old  time.Time
	at   time.Time
	jump int64
	// jumped is this process's time when the jump was noticed.
	jumped time.Time
	// ahead is how much the database's clock is ahead of old.
	ahead time.Duration
}

// times are the two times by which ages are counted; see clock.
type times struct {
	old, now time.Time
	jump     int64
	// since is the time that has passed in this process since the jump was noticed.
	since time.Duration
	// jumped is true when the jump has just been noticed.
	jumped bool
}

// read reads the state of the database, and its clock, until a reading takes no longer than
// maxReading.
func (c *clock) read(ctx context.Context, read func(context.Context) (State, error)) (State, times, error) {
	for {
		before := time.Now()
		state, err := read(ctx)
		if err != nil {
			return state, times{}, err
		}
		if local := time.Now(); local.Sub(before) <= maxReading {
			return state, c.compare(state, local), nil
		}
	}
}

// compare compares the database's clock with this process's at the same time.
func (c *clock) compare(state State, local time.Time) times {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A driver in this process returns a time with a monotonic reading, which hides that
	// the clock was set. Round removes that reading.
	now := state.Time.Round(0)
	if c.began.IsZero() {
		c.began, c.old, c.at = local, now, local
	}
	expected := c.old.Add(local.Sub(c.at))
	ahead := now.Sub(expected)
	jumped := ahead-c.ahead > clockTolerance
	switch {
	case jumped:
		c.jump, c.jumped = state.Revision, local
		c.old, c.ahead = expected, ahead
	case c.jump > 0 && ahead > clockTolerance:
		c.old, c.ahead = expected, ahead
	default:
		c.old, c.jump, c.ahead = now, 0, 0
	}
	c.at = local
	return times{c.old, now, c.jump, local.Sub(c.jumped), jumped}
}

// deletion selects the changes of a resource up to a revision that have reached an age. It judges
// them by old if some were made before the clock was set forward, until the age has passed since
// then: all of these have reached it.
func (t times) deletion(h History, age time.Duration, upTo int64) Deletion {
	by := t.now
	if h.First <= t.jump && t.since < age {
		by = t.old
	}
	return Deletion{Of: h.Resource, UpTo: upTo, Before: by.Add(-age)}
}

// isDue reports whether the oldest change of a history has reached an age, or is of unknown age.
func (t times) isDue(h History, age time.Duration) bool {
	return age >= 0 && h.First > 0 && (h.FirstTime.After(t.now) || h.FirstTime.Before(t.deletion(h, age, 0).Before))
}

// hasRun reports whether this process has run for some time.
func (c *clock) hasRun(long time.Duration, local time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return local.Sub(c.began) >= long
}
