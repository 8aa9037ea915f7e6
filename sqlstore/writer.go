package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// write is the writer: it commits one batch after the other until ctx ends. Writes that
// arrive while a batch is being committed wait in the queue for the next batch. When ctx
// ends, write fails the queued writes with ErrClosed.
func (s *Store) write(ctx context.Context, yield func()) {
	defer func() {
		for _, p := range s.queue.close() {
			p.finish(Change{}, ErrClosed)
		}
	}()
	b := &batch{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.queue.arrived:
		case <-s.retryDue():
			s.tryWrite(context.WithoutCancel(ctx))
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.queue.gather(s.options.BatchWrites, time.Now, yield)
		b.take(s.queue, s.options.BatchWrites, s.options.BatchBytes)
		// The end of ctx does not cancel a transaction that has begun.
		s.commit(context.WithoutCancel(ctx), b)
		s.queue.failConflicts()
		b.release()
	}
}

// batch has the writes of one transaction. Its memory is used again for the next one.
// Invariant: writes[i] is the write of pending[i].
type batch struct {
	pending []*pending
	writes  []Write
}

// take fills the batch from the queue; see queue.take.
func (b *batch) take(q *queue, writes, size int) {
	b.pending = q.take(b.pending[:0], writes, size)
	b.writes = b.writes[:0]
	for _, p := range b.pending {
		b.writes = append(b.writes, p.write)
	}
}

// release drops the references to the writes, so that their values can be freed.
func (b *batch) release() {
	clear(b.pending)
	clear(b.writes)
}

// commit commits a batch in one transaction and finishes its writes.
func (s *Store) commit(ctx context.Context, b *batch) {
	if len(b.pending) == 0 {
		return
	}
	start := time.Now()
	outcomes, err := s.Driver.Commit(ctx, b.writes)
	s.metrics.observeCommit(len(b.writes), time.Since(start), err)
	s.recordCommit(err)
	switch {
	case err == nil || outcomes != nil:
		s.finish(b.pending, outcomes, err)
	case errors.Is(err, ErrDiskFull) && s.inReserve() && b.failGrowing(err):
		// There is space now for the writes that are left, such as deletes.
		s.commit(ctx, b)
	case len(b.pending) == 1 || isOutage(err) || errors.Is(err, ErrClosed):
		for _, p := range b.pending {
			p.finish(Change{}, err)
		}
	default:
		// The database refused the batch because of a write that Write.Check should
		// not have accepted. Halving the batch finds that write in few transactions, and
		// commits the others.
		s.options.Logger.Error("store: the database refused a batch, committing its halves", "writes", len(b.pending), "err", err)
		half := len(b.pending) / 2
		s.commit(ctx, &batch{pending: b.pending[:half], writes: b.writes[:half]})
		s.commit(ctx, &batch{pending: b.pending[half:], writes: b.writes[half:]})
	}
}

// failGrowing fails the writes of a batch that make the database larger, and takes them from it. It
// reports whether it has taken some and left others.
func (b *batch) failGrowing(err error) bool {
	var rest batch
	for i, p := range b.pending {
		if b.writes[i].Op == Delete || !b.writes[i].Grows {
			rest.pending, rest.writes = append(rest.pending, p), append(rest.writes, b.writes[i])
		}
	}
	if len(rest.pending) == 0 || len(rest.pending) == len(b.pending) {
		return false
	}
	for i, p := range b.pending {
		if b.writes[i].Op != Delete && b.writes[i].Grows {
			p.finish(Change{}, err)
		}
	}
	*b = rest
	return true
}

// finish publishes the changes of a batch that was committed, then lets its Commits return: with err, if it is not nil.
func (s *Store) finish(batch []*pending, outcomes []Outcome, err error) {
	// The slice is a new one, because Publish may keep it.
	changes := make([]Change, 0, len(batch))
	for i, p := range batch {
		if p.err = cmp.Or(err, outcomes[i].Err); outcomes[i].Err == nil {
			p.change = p.write.ChangeOf(outcomes[i])
			changes = append(changes, p.change)
		}
	}
	if len(changes) > 0 {
		s.revision.Store(changes[len(changes)-1].Revision)
		s.metrics.revision.Set(float64(s.revision.Load()))
		s.options.Publish(changes)
	}
	for _, p := range batch {
		close(p.done)
	}
	if len(changes) > 0 {
		select {
		case s.committed <- struct{}{}:
		default:
		}
	}
}

// ChangeOf returns the change that the write has made, with an outcome without an error.
func (w *Write) ChangeOf(o Outcome) Change {
	c := Change{
		Op: w.Op, Revision: o.Revision, Time: o.Time, Author: w.Author, Attributes: w.Attributes,
		New: Record{Key: w.Key, Created: o.Created, Revision: o.Revision},
	}
	if w.Op != Create {
		c.Old = &Record{Key: w.Key, UID: o.UID, Created: o.Created, Revision: w.Replaces}
		c.OldBytes = o.OldBytes
	}
	if w.Op == Delete {
		c.New.UID = o.UID
		return c
	}
	c.New.UID, c.New.Encoding, c.New.Expires, c.New.Value = w.UID, w.Encoding, w.Expires, w.Value
	return c
}
