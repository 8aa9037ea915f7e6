package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxJudged bounds the records that are examined one by one after the database's clock
// was set forward.
const maxJudged = 10_000

// readClock reads the database's clock; see clock.
func (s *Store) readClock(ctx context.Context) (State, times, error) {
	state, err := s.State(ctx)
	if err != nil {
		return state, times{}, err
	}
	t := s.clock.read(state, time.Now())
	if t.jumped {
		s.options.Logger.Warn("store: the database's clock was set forward; what was written before is kept for as long as it should be",
			"by", t.now.Sub(t.old), "revision", t.jump)
	}
	return state, t, nil
}

// expireDue deletes records whose time has come, on one process at a time. Where there are
// none it takes no lock: on PostgreSQL a lock takes a connection.
func (s *Store) expireDue(ctx context.Context) error {
	_, t, err := s.readClock(ctx)
	if err != nil {
		return err
	}
	expired, err := s.Expired(ctx, t.now, 1)
	if err != nil {
		return fmt.Errorf("find expired records: %w", err)
	}
	if len(expired) == 0 && t.jump == 0 {
		return nil
	}
	return s.withLock(ctx, "expire", s.expire)
}

// expire deletes expired records.
func (s *Store) expire(ctx context.Context) error {
	for {
		state, t, err := s.readClock(ctx)
		if err != nil {
			return err
		}
		expired, err := s.Expired(ctx, t.old, s.options.BatchWrites)
		if err == nil && t.jump > 0 {
			expired, err = s.expiredSince(ctx, state, t, expired)
		}
		if err != nil {
			return fmt.Errorf("find expired records: %w", err)
		}
		gone, err := s.deleteExpired(ctx, expired)
		if err != nil || len(expired) < s.options.BatchWrites || gone == 0 {
			return err
		}
	}
}

// expiredSince adds what was written after a jump of the database's clock.
func (s *Store) expiredSince(ctx context.Context, state State, t times, expired []Record) ([]Record, error) {
	candidates, err := s.Expired(ctx, t.now, maxJudged)
	if err != nil {
		return nil, err
	}
	kept := len(candidates) == maxJudged
	for _, r := range candidates {
		switch {
		case r.Revision > t.jump && len(expired) < s.options.BatchWrites:
			expired = append(expired, r)
		case r.Expires.After(t.old):
			kept = true
		}
	}
	if !kept && (s.options.Retention < 0 || state.Compacted >= t.jump) {
		s.clock.forget()
	}
	return expired, nil
}

func (s *Store) deleteExpired(ctx context.Context, expired []Record) (gone int, err error) {
	var deletes sync.WaitGroup
	errs := make([]error, len(expired))
	for i, r := range expired {
		deletes.Go(func() {
			_, errs[i] = s.Commit(ctx, Write{
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
			gone++
		case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
			gone++ // renewed or deleted meanwhile
		default:
			return gone, fmt.Errorf("delete expired records: %w", err)
		}
	}
	return gone, nil
}
