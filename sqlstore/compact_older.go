package sqlstore

import (
	"context"
	"math"
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
	upTo := state.Revision
	if c.Of != (GroupResource{}) {
		if upTo, err = s.lastChange(ctx, c.Of); err != nil {
			return 0, nil, err
		}
	}
	for deleted := int64(1); deleted > 0; {
		kept = nil
		if deleted, err = s.housekeeping.compact(ctx, upTo, t, c.Keep, func(h History) bool {
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

// lastChange returns the revision of the last change of the resources that a name selects; 0 if there is none. The
// store is compacted no further for them: otherwise feeds that are behind could not read later changes of others.
func (s *Store) lastChange(ctx context.Context, of GroupResource) (last int64, err error) {
	histories, err := s.Histories(ctx)
	if err != nil {
		return 0, err
	}
	for _, h := range histories {
		if !of.Selects(h.Resource) {
			continue
		}
		newest, err := s.Changes(ctx, ChangesQuery{Of: &h.Resource, Before: math.MaxInt64, Kept: true, KeysOnly: true, Limit: 1})
		if err != nil {
			return 0, err
		}
		for _, c := range newest {
			last = max(last, c.Revision)
		}
	}
	return last, nil
}
