package sqlstore

import (
	"context"
	"fmt"
	"time"
)

const (
	// chunkTime is how long one chunk of a compaction may delay a batch.
	chunkTime                               = 20 * time.Millisecond
	firstChunk, smallestChunk, largestChunk = 200, 10, 20_000
)

// Compact deletes the changes up to and including a revision, one chunk at a time. It leaves
// nine tenths of the time to the writers, and six sevenths where these make more changes than
// it deletes. Before that it archives what Options.RetentionFor keeps.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	s.compacting.Lock()
	defer s.compacting.Unlock()
	if err := s.archive(ctx, revision); err != nil {
		return err
	}
	var p pace
	chunk, deleted := firstChunk, int64(0)
	for {
		start := time.Now()
		done, err := s.Driver.Compact(ctx, revision, chunk)
		if err != nil {
			return fmt.Errorf("compact: %w", err)
		}
		took := time.Since(start)
		s.metrics.compactions.Observe(took.Seconds())
		if done {
			return s.recordState(ctx)
		}
		deleted += int64(chunk)
		if err := s.pause(ctx, &p, took, deleted); err != nil {
			return err
		}
		chunk = nextChunk(chunk, took)
	}
}

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

// retainAlone calls retain on one process at a time.
func (s *Store) retainAlone(ctx context.Context) error {
	return s.withLock(ctx, "compact", s.retain)
}

// retain compacts the changes that are too old or too many.
func (s *Store) retain(ctx context.Context) error {
	state, t, err := s.readClock(ctx)
	if err != nil {
		return err
	}
	// This comes before the compaction: an archived change must not outlive its
	// successor.
	if err := s.pruneArchive(ctx, t.old); err != nil {
		return err
	}
	var target int64
	if s.options.RetentionChanges >= 0 {
		target = state.Revision - s.options.RetentionChanges
	}
	if s.options.Retention >= 0 {
		aged, err := s.lastBefore(ctx, t.old.Add(-s.options.Retention), state)
		if err != nil {
			return err
		}
		target = max(target, min(aged, s.clock.oldest(s.options.Retention, state, time.Now())))
	}
	if target <= state.Compacted {
		return s.recordState(ctx)
	}
	s.options.Logger.Debug("store: compacting", "from", state.Compacted, "to", target, "revision", state.Revision)
	return s.Compact(ctx, target)
}

// lastBefore finds the last revision made before t by bisection: revisions are
// dense and their times ascend (but where the clock was set back; see
// clock.oldest), so that no index on the time is needed.
func (s *Store) lastBefore(ctx context.Context, t time.Time, state State) (int64, error) {
	low, high := state.Compacted, state.Revision // low: forgotten or before t
	for low < high {
		mid := low + (high-low+1)/2
		changes, err := s.Changes(ctx, mid-1, 1, 0)
		if err != nil {
			return 0, err
		}
		if len(changes) == 1 && changes[0].Time.Before(t) {
			low = changes[0].Revision
		} else {
			high = mid - 1
		}
	}
	return low, nil
}

func (s *Store) recordState(ctx context.Context) error {
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	s.metrics.revision.Set(float64(state.Revision))
	s.metrics.compacted.Set(float64(state.Compacted))
	return nil
}
