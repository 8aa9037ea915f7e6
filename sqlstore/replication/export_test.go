package replication

import (
	"context"
	"time"
)

// SetBacklog sets the bound of the backlog, before Run.
func (r *Replicator) SetBacklog(bytes int64) { r.backlogBytes = bytes }

// SetMergePause sets the time between two merges, before Run.
func (r *Replicator) SetMergePause(d time.Duration) { r.mergePause = d }

// Age makes the copies a day and an hour older, and maintains them. Run has returned.
func (r *Replicator) Age(ctx context.Context) error {
	for _, c := range r.session.copies {
		f := c.folder.Load()
		f.snapshot, f.merged = f.snapshot.Add(-25*time.Hour), time.Time{}
		if err := c.maintain(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// Merge does what is done when the next merges are due. Run has returned.
func (r *Replicator) Merge(ctx context.Context) error {
	for range 3 {
		for _, c := range r.session.copies {
			f := c.folder.Load()
			f.merged = time.Time{}
			if err := c.maintain(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Captured returns the last file of the backlog of the current session, which does not end.
func (r *Replicator) Captured() uint64 {
	return uint64(r.session.position().id)
}

// Renew renews the lease once.
func (l *Lease) Renew(ctx context.Context) error { return l.renew(ctx, func(*LeaseState) {}) }

// Remove deletes the object, as an operator does.
func (o *LeaseObject) Remove(ctx context.Context) error {
	return o.place.Delete(ctx, leaseName)
}
