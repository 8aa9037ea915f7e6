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
	// UpTo is the last revision that is deleted; 0 means that of PlanCompaction.
	UpTo int64
}

// CompactionPlan is what CompactOlder has to do.
type CompactionPlan struct {
	// UpTo is the revision to pass as Compaction.UpTo, so that what is written during a compaction in
	// several calls does not make it longer.
	UpTo int64
	// Older is about how many changes are to be deleted, and Younger how many are left because of Compaction.Keep.
	Older, Younger int64
}

// PlanCompaction counts the changes that CompactOlder selects, which reads an entry of an index for each.
func (s *Store) PlanCompaction(ctx context.Context, c Compaction) (p CompactionPlan, err error) {
	if p.UpTo, err = s.compactionEnd(ctx, c); err != nil {
		return p, err
	}
	oldest := p.UpTo
	if c.Keep > 0 {
		_, t, err := s.housekeeping.readClock(ctx)
		if err != nil {
			return p, err
		}
		if oldest, err = s.RevisionAt(ctx, t.now.Add(-c.Keep)); err != nil {
			return p, err
		}
	}
	histories, err := s.Histories(ctx)
	if err != nil {
		return p, err
	}
	for _, h := range histories {
		if h.First == 0 || !s.options.selects(c, h) {
			continue
		}
		all, _, err := s.CountChanges(ctx, h.Resource, p.UpTo, math.MaxInt64)
		if err != nil {
			return p, err
		}
		older := all
		if oldest < p.UpTo {
			if older, _, err = s.CountChanges(ctx, h.Resource, oldest, math.MaxInt64); err != nil {
				return p, err
			}
		}
		p.Older += older
		p.Younger += all - older
	}
	return p, nil
}

// Compacted is what CompactOlder has done.
type Compacted struct {
	// Deleted is how many changes it has deleted.
	Deleted int64
	// Revision is the last revision that is compacted; 0 if it was not done.
	Revision int64
	// Kept are the resources whose history it has kept because they keep it for longer.
	Kept []Resource
}

// CompactOlder deletes history, for an operator who needs space at once. If it fails, or ctx ends, it has deleted
// a part, of which it returns the number; another call continues.
func (s *Store) CompactOlder(ctx context.Context, c Compaction) (done Compacted, err error) {
	state, t, err := s.housekeeping.readClock(ctx)
	if err != nil {
		return done, err
	}
	if c.UpTo == 0 {
		if c.UpTo, err = s.compactionEnd(ctx, c); err != nil {
			return done, err
		}
	}
	for deleted := int64(1); deleted > 0; {
		done.Kept = nil
		deleted, err = s.housekeeping.compact(ctx, min(c.UpTo, state.Revision), t, c.Keep, func(h History) bool {
			isSelected := s.options.selects(c, h)
			if !isSelected && c.Of == (GroupResource{}) && h.First > 0 {
				done.Kept = append(done.Kept, h.Resource)
			}
			return isSelected
		})
		done.Deleted += deleted
		if err != nil {
			return done, err
		}
	}
	state, err = s.State(ctx)
	done.Revision = state.Compacted
	return done, err
}

// ReturnSpace gives the space of deleted rows back to the file system until ctx ends, as far as the driver can. Run
// does it too.
func (s *Store) ReturnSpace(ctx context.Context) error { return s.housekeeping.endCompaction(ctx) }

// selects reports whether a compaction selects a history.
func (o *Options) selects(c Compaction, h History) bool {
	if c.Of != (GroupResource{}) {
		return c.Of.Selects(h.Resource)
	}
	_, isLonger := o.retentionOf(GroupResource{h.Group, h.Resource.Resource})
	return !isLonger && !exceeds(h.RetainedFor, o.Retention)
}

// compactionEnd returns the revision of the last change that a compaction selects; 0 if there is none. The
// store is compacted no further for one resource: otherwise feeds that are behind could not read later changes of
// others.
func (s *Store) compactionEnd(ctx context.Context, c Compaction) (last int64, err error) {
	if c.Of == (GroupResource{}) {
		state, err := s.State(ctx)
		return state.Revision, err
	}
	histories, err := s.Histories(ctx)
	if err != nil {
		return 0, err
	}
	for _, h := range histories {
		if !c.Of.Selects(h.Resource) {
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
