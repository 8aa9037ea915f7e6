package sqlstore

import (
	"context"
	"fmt"
	"time"
)

// GroupResource names the objects of one resource, whoever defines it.
type GroupResource struct{ Group, Resource string }

// Archiver is a Driver that can keep changes of some resources after they are compacted.
// People read the archive by SQL. Changes and List do not return archived changes.
type Archiver interface {
	// Archive copies the changes with after < revision <= upTo of the resources that
	// keep selects. A change that was copied before is not copied again.
	Archive(ctx context.Context, after, upTo int64, keep func(GroupResource) bool) error
	// NextArchived returns the first resource in the archive that follows the given
	// one, by group and then resource; ok is false after the last one.
	NextArchived(ctx context.Context, after GroupResource) (next GroupResource, ok bool, err error)
	// DeleteArchived deletes up to limit archived changes of a resource that were made
	// before t, the oldest ones, and returns how many.
	DeleteArchived(ctx context.Context, of GroupResource, t time.Time, limit int) (deleted int, err error)
}

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

// archiveAge returns the age at which archived changes of a resource are deleted; negative
// means never. ok is false if the changes of the resource are not archived.
func (o *Options) archiveAge(of GroupResource) (age time.Duration, ok bool) {
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
	return age, best > 0 && (age < 0 || o.Retention < 0 || age > o.Retention)
}

func (o *Options) isArchived(of GroupResource) bool {
	_, ok := o.archiveAge(of)
	return ok
}

// archive copies those of the changes up to upTo that Options.RetentionFor keeps.
//
// Invariant: at any time a change that RetentionFor keeps is in the table changes, in the
// table archive, or in both. Compact calls archive before it deletes the first change. If
// the process ends in between, the next compaction copies what is not in the archive yet.
// Without the invariant history would have gaps.
func (s *Store) archive(ctx context.Context, upTo int64) error {
	archiver, ok := s.Driver.(Archiver)
	if !ok || len(s.options.RetentionFor) == 0 {
		return nil
	}
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	var p pace
	chunk := firstChunk
	upTo = min(upTo, state.Revision)
	for after := state.Compacted; after < upTo; {
		start := time.Now()
		next := min(upTo, after+int64(chunk))
		if err := archiver.Archive(ctx, after, next, s.options.isArchived); err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		after = next
		took := time.Since(start)
		if err := s.pause(ctx, &p, took, after-state.Compacted); err != nil {
			return err
		}
		chunk = nextChunk(chunk, took)
	}
	return nil
}

// pruneArchive deletes the archived changes that are older at now than RetentionFor keeps
// them, and all archived changes of resources that RetentionFor does not name.
func (s *Store) pruneArchive(ctx context.Context, now time.Time) error {
	archiver, ok := s.Driver.(Archiver)
	if !ok {
		return nil
	}
	for of := (GroupResource{}); ; {
		next, ok, err := archiver.NextArchived(ctx, of)
		if err != nil || !ok {
			return err
		}
		of = next
		age, isKept := s.options.archiveAge(of)
		switch {
		case isKept && age < 0:
			continue
		case !isKept:
			age = 0
			s.options.Logger.Info("store: deleting the archived history of a resource that --retention-for does not keep", "group", of.Group, "resource", of.Resource)
		}
		if err := s.deleteArchived(ctx, archiver, of, now.Add(-age)); err != nil {
			return fmt.Errorf("delete archived changes: %w", err)
		}
	}
}

func (s *Store) deleteArchived(ctx context.Context, a Archiver, of GroupResource, before time.Time) error {
	var p pace
	chunk, all := firstChunk, int64(0)
	for {
		start := time.Now()
		deleted, err := a.DeleteArchived(ctx, of, before, chunk)
		if err != nil || deleted < chunk {
			return err
		}
		took := time.Since(start)
		all += int64(deleted)
		if err := s.pause(ctx, &p, took, all); err != nil {
			return err
		}
		chunk = nextChunk(chunk, took)
	}
}
