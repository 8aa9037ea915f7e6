package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// chunkTime is how long one chunk of a compaction may delay a batch of writes.
	chunkTime = 20 * time.Millisecond
	// A chunk is a number of changes. nextChunk adapts it to chunkTime.
	firstChunk, smallestChunk, largestChunk = 200, 10, 20_000
	// pauseRatio is how many times as long as a chunk the pause after it is: the writers have
	// six sevenths of the time. With longer pauses history would grow where they write much;
	// Options.Quota bounds it where even these are too long.
	pauseRatio = 6
)

// Compact deletes the changes of all resources up to and including a revision. A call that fails has
// deleted a part; another call continues.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	all := func(History) bool { return true }
	if _, err = s.housekeeping.compact(ctx, min(revision, state.Revision), times{}, 0, all); err != nil {
		return err
	}
	return s.housekeeping.endCompaction(ctx)
}

// compact deletes the changes of the selected resources up to a revision that have reached an age;
// if it is 0, all of them. deleted is how many, also if it fails; a call after it may delete more, unless it is 0.
func (s *housekeeping) compact(ctx context.Context, upTo int64, t times, age time.Duration, selects func(History) bool) (deleted int64, err error) {
	histories, err := s.driver.Histories(ctx)
	if err != nil {
		return 0, fmt.Errorf("compact: %w", err)
	}
	for _, h := range histories {
		if !selects(h) {
			continue
		}
		var n int64
		if age <= 0 {
			n, err = s.deleteHistory(ctx, Deletion{Of: h.Resource, UpTo: upTo})
		} else if t.isDue(h, age) {
			n, err = s.deleteOlder(ctx, h, t.deletion(h, age, upTo), t.now)
		}
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// maxUnknown is how many changes of unknown age deleteOlder examines: it does so each minute until
// they are deleted.
const maxUnknown = 5_000

// deleteOlder makes a deletion of the changes that were made before a time. A change that is stamped
// later than now was made while the clock was ahead: its age is unknown. It is deleted with the
// first change after it whose age is known, when that one is old enough. A call deletes either
// the changes of unknown age that are the oldest, or those up to the next one.
func (s *housekeeping) deleteOlder(ctx context.Context, h History, d Deletion, now time.Time) (deleted int64, err error) {
	if h.FirstTime.After(now) {
		changes, err := s.driver.Changes(ctx, ChangesQuery{Of: &h.Resource, Kept: true, KeysOnly: true, Limit: maxUnknown})
		if err != nil {
			return 0, fmt.Errorf("compact: %w", err)
		}
		i := slices.IndexFunc(changes, func(c Change) bool { return !c.Time.After(now) })
		if i < 0 || changes[i].Revision > d.UpTo || !changes[i].Time.Before(d.Before) {
			return 0, nil
		}
		d = Deletion{Of: h.Resource, UpTo: changes[i].Revision}
	}
	return s.deleteHistory(ctx, d)
}

// deleteHistory makes a deletion, one chunk at a time, and returns how many changes it has
// deleted.
func (s *housekeeping) deleteHistory(ctx context.Context, d Deletion) (deleted int64, err error) {
	err = s.inChunks(ctx, func(limit int) (isDone bool, waited time.Duration, err error) {
		start := time.Now()
		d.Limit = limit
		n, waited, err := s.driver.DeleteHistory(ctx, d)
		if err == nil {
			s.metrics.compactions.Observe((time.Since(start) - waited).Seconds())
		}
		deleted += int64(n)
		return n < limit, waited, err
	})
	return deleted, err
}

// endCompaction returns the space of what was deleted, and sets the metrics. Before the last
// deletion, to return space would move rows that the next chunk deletes.
func (s *housekeeping) endCompaction(ctx context.Context) error {
	if driver, ok := s.driver.(Exclusive); ok {
		if err := s.inChunks(ctx, func(limit int) (isDone bool, waited time.Duration, err error) {
			isDone, err = driver.Shrink(ctx, limit)
			return isDone, 0, err
		}); err != nil {
			return err
		}
	}
	return s.recordState(ctx)
}

// chunk does a part of a compaction. waited is for how long it has waited for the writers.
type chunk func(limit int) (isDone bool, waited time.Duration, err error)

// inChunks calls do until it is done, and adapts the limit.
func (s *housekeeping) inChunks(ctx context.Context, do chunk) error {
	for limit := firstChunk; ; {
		isDone, took, err := s.takeTurn(ctx, limit, do)
		if err != nil || isDone {
			return err
		}
		limit = nextChunk(limit, took)
	}
}

// takeTurn calls do when it is its turn, and leaves time to the writers after it. took is without what do has waited
// for the writers: if that counted, chunks would be the smaller, and the pauses after them the longer, the more is
// written.
func (s *housekeeping) takeTurn(ctx context.Context, limit int, do chunk) (isDone bool, took time.Duration, err error) {
	select {
	case <-ctx.Done():
		return false, 0, ctx.Err()
	case s.turn <- struct{}{}:
	}
	defer func() { <-s.turn }()
	start := time.Now()
	isDone, waited, err := do(limit)
	if err != nil {
		return false, 0, fmt.Errorf("compact: %w", err)
	}
	took = time.Since(start) - waited
	if isDone {
		return true, took, nil
	}
	pause := pauseRatio * took
	if s.options.Alone {
		pause = 0
	}
	select {
	case <-ctx.Done():
		return false, took, ctx.Err()
	case <-time.After(pause):
		return false, took, nil
	}
}

// nextChunk returns the number of changes of the next chunk, after one that took so long.
func nextChunk(chunk int, took time.Duration) int {
	switch {
	case took > 2*chunkTime:
		chunk /= 4
	case took > chunkTime:
		chunk /= 2
	case took < chunkTime/2:
		chunk *= 2
	}
	return min(max(chunk, smallestChunk), largestChunk)
}

// recordState sets the metrics of the last and the compacted revision.
func (s *housekeeping) recordState(ctx context.Context) error {
	state, err := s.driver.State(ctx)
	if err != nil {
		return err
	}
	s.metrics.revision.Set(float64(state.Revision))
	s.metrics.compacted.Set(float64(state.Compacted))
	return nil
}
