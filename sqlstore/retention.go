package sqlstore

import (
	"context"
	"fmt"
	"math"
	"time"
)

// GroupResource names the objects of one resource, whoever defines it.
type GroupResource struct{ Group, Resource string }

// rank tells how specifically a name, as ResourceRetention has it, selects a resource; 0 if it
// does not.
func (r GroupResource) rank(of GroupResource) int {
	switch r {
	case of:
		return 3
	case GroupResource{Resource: of.Resource}:
		return 2
	case GroupResource{Resource: "*"}:
		return 1
	}
	return 0
}

// Selects reports whether a name, as ResourceRetention has it, selects a resource.
func (r GroupResource) Selects(of Resource) bool {
	return r.rank(GroupResource{of.Group, of.Resource}) > 0
}

// ResourceRetention is how long the history of a resource is kept, in place of Options.Retention.
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
		if rank := r.rank(of); rank > best {
			best, age = rank, r.Age
		}
	}
	if best == 0 {
		return o.Retention, false
	}
	return age, o.Retention >= 0 && (age < 0 || age > o.Retention)
}

// retain deletes the changes of each resource that have reached their age, or of which there are
// more than Options.RetentionChanges.
func (s *housekeeping) retain(ctx context.Context) error {
	state, t, err := s.readClock(ctx)
	if err != nil {
		return err
	}
	histories, err := s.driver.Histories(ctx)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	changed := make(map[Resource]time.Duration)
	for _, h := range histories {
		age, isLonger := s.retentionNow(h, t, changed)
		if h.First == 0 {
			continue
		}
		if t.isDue(h, age) {
			deleted, err := s.deleteOlder(ctx, h, t.deletion(h, age, s.clock.oldest(age, state, time.Now())), t.now)
			if err != nil {
				return err
			}
			if deleted > 0 && exceeds(h.RetainedFor, age) {
				s.options.Logger.Warn("store: deleted history that was kept for longer before",
					"resource", h.Resource, "changes", deleted, "before", h.RetainedFor, "retention", age)
			}
		}
		if !isLonger {
			if err := s.retainCount(ctx, h, state.Revision); err != nil {
				return err
			}
		}
	}
	if err := s.endCompaction(ctx); err != nil || len(changed) == 0 {
		return err
	}
	return s.driver.SetRetainedFor(ctx, changed)
}

// graceTime is how long a process runs before it deletes history that a process before it, with
// other options, would have kept: time to notice an option that was dropped or mistyped.
const graceTime = 24 * time.Hour

// retentionNow returns what retentionOf does of the resource of a history. If there are changes that
// it would delete and that History.RetainedFor keeps, it returns that until the process has run for
// graceTime. changed gets the resources whose RetainedFor is to be another.
//
// Invariant: RetainedFor becomes shorter only when nothing is left that it keeps. The caller deletes
// before it stores changed; otherwise a process that ends in between would leave changes that the next
// one deletes at once, without a word.
func (s *housekeeping) retentionNow(h History, t times, changed map[Resource]time.Duration) (age time.Duration, isLonger bool) {
	age, isLonger = s.options.retentionOf(GroupResource{h.Group, h.Resource.Resource})
	isKept := exceeds(h.RetainedFor, age) && t.isDue(h, age)
	if !isKept || s.clock.hasRun(graceTime, time.Now()) {
		if whole := wholeSeconds(age); whole != h.RetainedFor {
			changed[h.Resource] = whole
		}
		return age, isLonger
	}
	if known := s.counts[h.Resource]; !known.isAnnounced {
		known.isAnnounced = true
		s.counts[h.Resource] = known
		s.options.Logger.Warn("store: the history of a resource was kept for longer before; what is older than its retention now "+
			"is deleted when this process has run for a day: to keep it, set --retention-for; \"byre compact --resource\" deletes it at once",
			"resource", h.Resource, "before", h.RetainedFor, "retention", age)
	}
	return h.RetainedFor, true
}

// exceeds reports whether a RetainedFor is known and keeps changes for longer than age does.
func exceeds(retainedFor, age time.Duration) bool {
	whole := wholeSeconds(age)
	return whole > 0 && (retainedFor < 0 || retainedFor > whole)
}

// wholeSeconds returns an age as RetainedFor has it.
func wholeSeconds(age time.Duration) time.Duration {
	if age < 0 {
		return -time.Second
	}
	return max((age + time.Second - 1).Truncate(time.Second), time.Second)
}

// changeCount is what retain knows of the changes of a resource.
type changeCount struct {
	// next is the revision before which there can't be too many of them.
	next int64
	// isCut is true once changes were deleted because there were too many, isAnnounced once it
	// was logged that changes will be deleted because the retention has become shorter.
	isCut, isAnnounced bool
}

// retainCount deletes the oldest changes of a resource if there are more than
// Options.RetentionChanges. It counts only when so many changes were made since the last count
// that there may be too many, because a count reads the index entries of all that are kept.
func (s *housekeeping) retainCount(ctx context.Context, h History, revision int64) error {
	most, known := s.options.RetentionChanges, s.counts[h.Resource]
	if most < 0 || revision-h.First < most || revision < known.next {
		return nil
	}
	count, oldest, err := s.driver.CountChanges(ctx, h.Resource, math.MaxInt64, most+1)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if count > most {
		deleted, err := s.deleteHistory(ctx, Deletion{Of: h.Resource, UpTo: oldest})
		if err != nil {
			return err
		}
		s.metrics.cut.WithLabelValues(h.Group, h.Resource.Resource).Add(float64(deleted))
		if !known.isCut {
			s.options.Logger.Warn("store: the number of changes, not their age, decides how far the history of a resource reaches back: "+
				"raise --retention-changes, or lower --retention",
				"resource", h.Resource, "changes", most, "retention", s.options.Retention)
		}
		count, known.isCut = most, true
	}
	known.next = revision + max(most-count, most/10) + 1
	s.counts[h.Resource] = known
	return nil
}
