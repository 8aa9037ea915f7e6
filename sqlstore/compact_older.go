package sqlstore

import (
	"context"
	"time"
)

// CompactOlder deletes the changes that are older than keep, whatever Options keep, and returns the
// last revision that is compacted. It is for an operator who needs space at once.
func (s *Store) CompactOlder(ctx context.Context, keep time.Duration) (int64, error) {
	state, t, err := s.readClock(ctx)
	if err != nil {
		return 0, err
	}
	var before time.Time
	if keep > 0 {
		before = t.old.Add(-keep)
	}
	if err := s.compact(ctx, state.Revision, before); err != nil {
		return 0, err
	}
	state, err = s.State(ctx)
	return state.Compacted, err
}
