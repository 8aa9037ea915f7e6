package sqlstore

import (
	"context"
	"fmt"
	"math"
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

// compact deletes the changes of the selected resources up to a revision that have reached an age;
// if it is 0, all of them. deleted is how many, also if it fails; a call after it may delete more, unless it is 0.
func (s *housekeeping) compact(
	ctx context.Context, upTo int64, t times, age time.Duration, selects func(History) bool,
) (deleted int64, err error) {
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
func (s *housekeeping) deleteOlder(
	ctx context.Context, h History, d Deletion, now time.Time,
) (deleted int64, err error) {
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
		newest, err := s.Changes(ctx,
			ChangesQuery{Of: &h.Resource, Before: math.MaxInt64, Kept: true, KeysOnly: true, Limit: 1})
		if err != nil {
			return 0, err
		}
		for _, c := range newest {
			last = max(last, c.Revision)
		}
	}
	return last, nil
}

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
			deleted, err := s.deleteOlder(ctx, h, t.deletion(h, age, state.Revision), t.now)
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
func (s *housekeeping) retentionNow(
	h History, t times, changed map[Resource]time.Duration,
) (age time.Duration, isLonger bool) {
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
		s.options.Logger.Warn(
			"store: the history of a resource was kept for longer before; what is older than its retention now "+
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
			s.options.Logger.Warn(
				"store: the number of changes, not their age, decides how far the history of a resource reaches back: "+
					"raise --retention-changes, or lower --retention",
				"resource", h.Resource, "changes", most, "retention", s.options.Retention)
		}
		count, known.isCut = most, true
	}
	known.next = revision + max(most-count, most/10) + 1
	s.counts[h.Resource] = known
	return nil
}
