package sqlstore

import (
	"context"
	"fmt"
	"time"
)

const (
	// chunkTime is how long one chunk of a compaction may delay a batch of writes.
	chunkTime = 20 * time.Millisecond
	// A chunk is a number of changes. nextChunk adapts it to chunkTime.
	firstChunk, smallestChunk, largestChunk = 200, 10, 20_000
)

// Compact deletes the changes up to and including a revision, one chunk at a time. First it
// archives the changes that Options.RetentionFor keeps. It leaves nine tenths of the time to
// the writers, or down to six sevenths while the writers make more changes than Compact
// deletes. Calls run one after the other. A call that fails has deleted a part; another call
// continues.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	s.compacting.Lock()
	defer s.compacting.Unlock()
	if err := s.archive(ctx, revision); err != nil {
		return err
	}
	var p pace
	chunk, deleted := firstChunk, int64(0)
	for {
		start, waited := time.Now(), s.lockWaited()
		n, done, err := s.Driver.Compact(ctx, revision, chunk)
		if err != nil {
			return fmt.Errorf("compact: %w", err)
		}
		took := time.Since(start) - (s.lockWaited() - waited)
		s.metrics.compactions.Observe(took.Seconds())
		if done {
			return s.recordState(ctx)
		}
		deleted += n
		if err := s.pause(ctx, &p, took, deleted); err != nil {
			return err
		}
		chunk = nextChunk(chunk, took)
	}
}

// lockWaited returns how long compactions have waited for the writers' lock. A chunk that waits
// takes no time from the writers. If Compact counted the wait, chunks would be the smaller, and
// the pauses after them the longer, the more is written.
func (s *Store) lockWaited() time.Duration {
	if d, ok := s.Driver.(LockWaiter); ok {
		return d.LockWaited()
	}
	return 0
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

// retainAlone calls retain unless another process is in it.
func (s *Store) retainAlone(ctx context.Context) error {
	return s.withLock(ctx, "compact", s.retain)
}

// retain compacts the changes that are older than Options.Retention, or of which there are
// more than Options.RetentionChanges.
func (s *Store) retain(ctx context.Context) error {
	state, t, err := s.readClock(ctx)
	if err != nil {
		return err
	}
	// This comes before the compaction. The compaction moves younger changes to the
	// archive or deletes them; an older change of the same object must not stay in the
	// archive longer than they do.
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

// lastBefore finds the last revision made before t by bisection, without an index on the
// time. Revisions are dense, and their times ascend except where the clock was set back;
// the caller bounds the result by clock.oldest for that case.
func (s *Store) lastBefore(ctx context.Context, t time.Time, state State) (int64, error) {
	low, high := state.Compacted, state.Revision // the change of low is compacted, or was made before t
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

// recordState sets the metrics of the last and the compacted revision.
func (s *Store) recordState(ctx context.Context) error {
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	s.metrics.revision.Set(float64(state.Revision))
	s.metrics.compacted.Set(float64(state.Compacted))
	return nil
}
