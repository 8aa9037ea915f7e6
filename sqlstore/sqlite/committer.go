package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"byre/sqlstore"
)

// committer makes the transactions that write, one at a time, and has the changes in memory.
type committer struct {
	file    *file
	options *Options
	readers *reader
	reserve *diskReserve
	// grew is called when the log has grown, with the revision up to which the database has all changes.
	grew  func(revision int64)
	state counters

	// writing is held by the transaction under way: a batch, a chunk of a compaction, a
	// flush. It guards writer, lineage and closed.
	writing sync.Mutex
	writer  *writer
	lineage lineage
	buffer  *volatileBuffer
	closed  bool
}

// Commit implements sqlstore.Driver.
func (d *Driver) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	if r := d.options.Replication; r != nil {
		r.AwaitDetached(ctx)
	}
	outcomes, err := d.committer.commit(ctx, batch)
	if err != nil {
		return outcomes, err
	}
	if r := d.options.Replication; r != nil {
		if copyErr := r.AwaitCopy(ctx); copyErr != nil {
			err = fmt.Errorf("%w: %s", sqlstore.ErrUnknown, copyErr.Error())
		}
	}
	// Another process may go on without what was committed. Nobody is told of it then.
	if err := d.options.fence(sqlstore.ErrUnknown); err != nil {
		return nil, err
	}
	return outcomes, err
}

// fence fails with an error of a kind, and of no other, if Fence fails.
func (o *Options) fence(kind error) error {
	if err := o.Fence(); err != nil {
		return fmt.Errorf("%w: %s", kind, err.Error())
	}
	return nil
}

// commit makes a batch of writes in a transaction, or in memory.
func (c *committer) commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return nil, sqlstore.ErrClosed
	}
	if err := c.options.fence(sqlstore.ErrUnavailable); err != nil {
		return nil, err
	}
	now := c.options.Clock().UTC().Truncate(time.Microsecond)
	if c.buffer.takes(batch, c.state.Load().Revision, c.lineage.revision) {
		return c.commitToBuffer(ctx, batch, now)
	}
	outcomes := make([]sqlstore.Outcome, len(batch))
	grows := slices.ContainsFunc(batch, func(w sqlstore.Write) bool { return w.Grows })
	if err := c.changeLocked(grows, func(state *sqlstore.State) error { return c.writer.apply(batch, outcomes, state, now) }); err != nil {
		return nil, err
	}
	return outcomes, nil
}

// change runs f, which may change the state and does not make the database larger, in a transaction.
func (c *committer) change(ctx context.Context, f func(*sqlstore.State) error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return sqlstore.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.changeLocked(false, f)
}

// changeLocked is change for a caller that holds writing. grows says that f may make the database larger.
func (c *committer) changeLocked(grows bool, f func(*sqlstore.State) error) error {
	var state sqlstore.State
	if err := c.reserve.run(grows, func() error {
		state = *c.state.Load()
		return c.transaction(&state, func() error { return f(&state) })
	}); err != nil {
		return c.file.translate(err)
	}
	c.state.Store(&state)
	c.grew(state.Revision)
	return nil
}

// transaction writes the changes in memory to the database and runs f, in one transaction.
// After it the database holds every change up to state.Revision. f may change state.
func (c *committer) transaction(state *sqlstore.State, f func() error) error {
	b := c.buffer
	err := c.writer.transaction(func() error {
		for i := range b.changes {
			if err := c.writer.replay(&b.changes[i]); err != nil {
				return err
			}
		}
		return f()
	})
	b.isFailing = err != nil
	if hasCode(err, sqlite3.SQLITE_FULL) {
		c.reserve.release()
	} else if _, ok := errors.AsType[*commitError](err); ok && c.options.Replication != nil {
		c.options.Replication.Dropped()
	}
	if err != nil {
		return err
	}
	if b.isVolatile != nil && c.lineage.revision-state.Revision < reservedRevisions/2 {
		// Without a reservation the buffer takes no changes.
		_ = c.lineage.reserve(state.Revision + reservedRevisions)
	}
	b.clear(state.Revision)
	c.lineage.record(state.Revision)
	if c.reserve.isInUse.Load() && (c.options.Replication == nil || !c.options.Replication.Attached()) {
		// The log must not grow by each delete until it has all that the reserve gave. If this fails, Maintain tries it again.
		_, _ = c.writer.conn.ExecContext(context.Background(), checkpoint)
	}
	return nil
}

// overwrite commits a page. Its frame overwrites the first one of a transaction that SQLite has dropped, and the checksums of
// the others are wrong from then on. After end it does nothing.
func (c *committer) overwrite(ctx context.Context) error {
	err := c.change(ctx, func(*sqlstore.State) error { return c.writer.touchStore() })
	if errors.Is(err, sqlstore.ErrClosed) {
		return nil
	}
	return err
}

// flush writes the changes in memory to the database, in one transaction, if the oldest of them has an age. It
// returns the time until the oldest one may have reached flushInterval.
//
// It measures the age of the changes, and not the time since the last call, because a transaction for another
// resource may have flushed meanwhile. Each flush writes whole pages, so that it is worth saving one.
func (c *committer) flush(age time.Duration) (next time.Duration, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return flushInterval, sqlstore.ErrClosed
	}
	if len(c.buffer.changes) == 0 {
		return flushInterval, nil
	}
	if is := time.Since(c.buffer.oldest); is < age {
		return age - is, nil
	}
	return flushInterval, c.file.translate(c.flushLocked())
}

// flushLocked is flush for a caller that holds writing.
func (c *committer) flushLocked() error {
	if len(c.buffer.changes) == 0 {
		return nil
	}
	err := c.transaction(c.state.Load(), func() error { return nil })
	if err == nil {
		c.grew(c.state.Load().Revision)
	}
	if committing, ok := errors.AsType[*commitError](err); ok {
		return committing.err // no outcome is unknown: the changes are in memory until a transaction has succeeded
	}
	return err
}

// flushUnlessCovered flushes if a read of the database would miss what covers asks for. last is the last revision of the
// store before.
func (c *committer) flushUnlessCovered(revision int64, of *sqlstore.Resource) (last int64, err error) {
	isCovered, last := c.buffer.covers(revision, of)
	if !isCovered {
		_, err = c.flush(0)
	}
	return last, err
}

// flushAll flushes if the buffer has any change.
func (c *committer) flushAll() error {
	_, err := c.flushUnlessCovered(c.state.Load().Revision, nil)
	return err
}

// get returns the record under a key, in memory or in the database, as Driver.Get does.
func (c *committer) get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	record, known, last := c.buffer.find(key)
	switch {
	case known && record == nil:
		return sqlstore.Record{}, last, sqlstore.ErrNotFound
	case known:
		return *record, last, nil
	}
	stored, snapshot, err := c.readers.get(ctx, key)
	return stored, max(last, snapshot), c.file.translate(err)
}

// end flushes, and refuses transactions from then on. It waits for the transaction under way.
func (c *committer) end() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed || c.buffer == nil || c.buffer.isVolatile == nil {
		c.closed = true
		return nil
	}
	c.closed = true
	if err := c.flushLocked(); err != nil {
		return c.file.translate(err)
	}
	return c.lineage.reserve(c.state.Load().Revision) // the next start begins no epoch
}
