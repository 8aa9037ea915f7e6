package sqlstore

import (
	"context"
	"time"
)

// Compaction selects the history that CompactOlder deletes.
type Compaction struct {
	// Keep is the age of the changes that are deleted; 0 selects all.
	Keep time.Duration
	// Of selects the resource, as ResourceRetention does. If it is zero, the history of all
	// resources is deleted except of those that keep it for longer than Options.Retention.
	Of GroupResource
}

// CompactOlder deletes history, for an operator who needs space at once. It returns the last revision
// that is compacted, and the resources whose history it has kept because they keep it for longer.
func (s *Store) CompactOlder(ctx context.Context, c Compaction) (compacted int64, kept []Resource, err error) {
	state, t, err := s.housekeeping.readClock(ctx)
	if err != nil {
		return 0, nil, err
	}
	for deleted := int64(1); deleted > 0; {
		kept = nil
		if deleted, err = s.housekeeping.compact(ctx, state.Revision, t, c.Keep, func(h History) bool {
			of := GroupResource{h.Group, h.Resource.Resource}
			if c.Of != (GroupResource{}) {
				return c.Of.Selects(h.Resource)
			}
			_, isLonger := s.options.retentionOf(of)
			if isLonger = isLonger || exceeds(h.RetainedFor, s.options.Retention); isLonger && h.First > 0 {
				kept = append(kept, h.Resource)
			}
			return !isLonger
		}); err != nil {
			return 0, nil, err
		}
	}
	state, err = s.State(ctx)
	return state.Compacted, kept, err
}
