package sqlstore

import (
	"context"
	"time"
)

// CompactOlder compacts the changes that are older than keep, whatever Options keep, and returns the
// last revision that is compacted. It is for an operator who needs space at once.
func (s *Store) CompactOlder(ctx context.Context, keep time.Duration) (int64, error) {
	state, t, err := s.readClock(ctx)
	if err != nil {
		return 0, err
	}
	target := state.Revision
	if keep > 0 {
		if target, err = s.lastBefore(ctx, t.old.Add(-keep), state); err != nil {
			return 0, err
		}
	}
	if err := s.Compact(ctx, target); err != nil {
		return 0, err
	}
	return max(target, state.Compacted), nil
}
