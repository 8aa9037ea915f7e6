package sqlstore

import (
	"context"
	"fmt"
	"time"
)

// GroupResource names the objects of one resource, whoever defines it.
type GroupResource struct{ Group, Resource string }

// ResourceRetention is how long the history of a resource is kept. It has an effect where
// it is longer than Options.Retention, for which the history of all resources is kept.
type ResourceRetention struct {
	// GroupResource selects the resource. With an empty group it selects the resource
	// of that name in every group; the resource * with an empty group selects all
	// resources. Where several select a resource, the most specific one applies.
	GroupResource
	// Age is the age at which changes are deleted; negative means never.
	Age time.Duration
}

// retentionOf returns the age at which changes of a resource are deleted; negative means never.
// isLonger is true if RetentionFor keeps them for longer than Retention.
func (o *Options) retentionOf(of GroupResource) (age time.Duration, isLonger bool) {
	best := 0
	for _, r := range o.RetentionFor {
		rank := 0
		switch r.GroupResource {
		case of:
			rank = 3
		case GroupResource{Resource: of.Resource}:
			rank = 2
		case GroupResource{Resource: "*"}:
			rank = 1
		}
		if rank > best {
			best, age = rank, r.Age
		}
	}
	if best > 0 && o.Retention >= 0 && (age < 0 || age > o.Retention) {
		return age, true
	}
	return o.Retention, false
}

// retainAlone calls retain unless another process is in it.
func (s *Store) retainAlone(ctx context.Context) error {
	return s.withLock(ctx, "compact", s.retain)
}

// retain deletes the changes of each resource that have reached their age, or of which there are
// more than Options.RetentionChanges.
func (s *Store) retain(ctx context.Context) error {
	s.compacting.Lock()
	defer s.compacting.Unlock()
	state, t, err := s.readClock(ctx)
	if err != nil {
		return err
	}
	histories, err := s.Histories(ctx)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	var p pace
	for _, h := range histories {
		if h.First == 0 {
			continue
		}
		age, isLonger := s.options.retentionOf(GroupResource{h.Group, h.Resource.Resource})
		if before := t.old.Add(-age); age >= 0 && h.FirstTime.Before(before) {
			upTo := s.clock.oldest(age, state, time.Now())
			if _, err := s.deleteHistory(ctx, &p, Deletion{Of: h.Resource, UpTo: upTo, Before: before}); err != nil {
				return err
			}
		}
		if !isLonger {
			if err := s.retainCount(ctx, &p, h, state.Revision); err != nil {
				return err
			}
		}
	}
	return s.endCompaction(ctx, &p)
}

// changeCount is what retain knows of the number of changes of a resource.
type changeCount struct {
	// next is the revision before which there can't be too many of them.
	next int64
	// isCut is true once changes were deleted because there were too many.
	isCut bool
}

// retainCount deletes the oldest changes of a resource if there are more than
// Options.RetentionChanges. It counts only when so many changes were made since the last count
// that there may be too many, because a count reads the index entries of all that are kept.
func (s *Store) retainCount(ctx context.Context, p *pace, h History, revision int64) error {
	most, known := s.options.RetentionChanges, s.counts[h.Resource]
	if most < 0 || revision-h.First < most || revision < known.next {
		return nil
	}
	count, oldest, err := s.CountChanges(ctx, h.Resource, most+1)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if count > most {
		deleted, err := s.deleteHistory(ctx, p, Deletion{Of: h.Resource, UpTo: oldest})
		if err != nil {
			return err
		}
		s.metrics.cut.WithLabelValues(h.Group, h.Resource.Resource).Add(float64(deleted))
		if !known.isCut {
			s.options.Logger.Warn("store: the number of changes, not their age, decides how far the history of a resource reaches back; "+
				"watches of other resources resume no further: raise --retention-changes, or lower --retention",
				"resource", h.Resource, "changes", most, "retention", s.options.Retention)
		}
		count, known.isCut = most, true
	}
	known.next = revision + max(most-count, most/10) + 1
	s.counts[h.Resource] = known
	return nil
}
