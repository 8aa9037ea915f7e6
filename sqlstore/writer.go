package sqlstore

import (
	"context"
	"errors"
	"time"
)

// write is the writer: it commits one batch after the other until ctx ends. The
// writes that come while a batch is made durable wait in the queue for the next one.
func (s *Store) write(ctx context.Context) {
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
		case <-s.retry():
			s.tryWrite(context.WithoutCancel(ctx))
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if !s.withoutGathering {
			s.queue.gather(s.options.BatchWrites, time.Now, yield)
		}
		b.take(s.queue, s.options.BatchWrites, s.options.BatchBytes)
		// A transaction that has begun is not given up half way.
		s.commit(context.WithoutCancel(ctx), b)
		b.release()
	}
}

// batch is the memory of one transaction, used again for the next.
type batch struct {
	pending []*pending
	writes  []Write
}

func (b *batch) take(q *queue, writes, size int) {
	b.pending = q.take(b.pending[:0], writes, size)
	b.writes = b.writes[:0]
	for _, p := range b.pending {
		b.writes = append(b.writes, p.write)
	}
}

// release drops the references to values.
func (b *batch) release() {
	clear(b.pending)
	clear(b.writes)
}

func (s *Store) commit(ctx context.Context, b *batch) {
	if len(b.pending) == 0 {
		return
	}
	start := time.Now()
	outcomes, err := s.Driver.Commit(ctx, b.writes)
	s.metrics.committed(len(b.writes), time.Since(start), err)
	s.writable.record(err, time.Now())
	switch {
	case err == nil:
		s.finish(b.pending, outcomes)
	case len(b.pending) == 1 || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) || errors.Is(err, ErrClosed):
		for _, p := range b.pending {
			p.finish(Change{}, err)
		}
	default:
		// The database refused the batch because of one write that Write.Check let
		// through. Halving the batch finds that write in few transactions, and gives
		// the others outcomes of their own.
		s.options.Logger.Error("store: the database refused a batch, committing its halves", "writes", len(b.pending), "err", err)
		half := len(b.pending) / 2
		s.commit(ctx, &batch{pending: b.pending[:half], writes: b.writes[:half]})
		s.commit(ctx, &batch{pending: b.pending[half:], writes: b.writes[half:]})
	}
}

// finish publishes what the batch changed, then answers its writers.
func (s *Store) finish(batch []*pending, outcomes []Outcome) {
	// Publish keeps the slice.
	changes := make([]Change, 0, len(batch))
	for i, p := range batch {
		if p.err = outcomes[i].Err; p.err == nil {
			p.change = p.write.changed(outcomes[i])
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

// changed is the change that a write turned into.
func (w *Write) changed(o Outcome) Change {
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
	c.New.UID, c.New.Form, c.New.Expires, c.New.Value = w.UID, w.Form, w.Expires, w.Value
	return c
}
