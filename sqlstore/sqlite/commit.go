package sqlite

import (
	"context"
	"database/sql"
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
	if c.buffer.isVolatile != nil && c.buffer.takes(batch, c.state.Load().Revision, c.lineage.revision) {
		return c.commitToBuffer(ctx, batch, now)
	}
	outcomes := make([]sqlstore.Outcome, len(batch))
	grows := slices.ContainsFunc(batch, func(w sqlstore.Write) bool { return w.Grows })
	if err := c.changeLocked(grows, func(state *sqlstore.State) error {
		return c.writer.apply(batch, outcomes, state, now)
	}); err != nil {
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
	if b.isFailing = err != nil; b.isFailing {
		if hasCode(err, sqlite3.SQLITE_FULL) {
			c.reserve.release()
		} else if _, ok := errors.AsType[*commitError](err); ok && c.options.Replication != nil {
			c.options.Replication.Dropped()
		}
		return err
	}
	if b.isVolatile != nil {
		if c.lineage.revision-state.Revision < reservedRevisions/2 {
			// Without a reservation the buffer takes no changes.
			_ = c.lineage.reserve(state.Revision + reservedRevisions)
		}
		b.clear(state.Revision)
	}
	c.lineage.record(state.Revision)
	if c.reserve.isInUse.Load() && (c.options.Replication == nil || !c.options.Replication.Attached()) {
		// The log must not grow by each delete until it has all that the reserve gave. If this fails, Maintain tries it
		// again.
		_, _ = c.writer.conn.ExecContext(context.Background(), checkpoint)
	}
	return nil
}

// overwrite commits a page. Its frame overwrites the first one of a transaction that SQLite has dropped, and the
// checksums of the others are wrong from then on. After end it does nothing.
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

// flushUnlessCovered flushes if a read of the database would miss what covers asks for. last is the last revision of
// the store before.
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

// writer is the one connection that writes, with its prepared statements.
type writer struct {
	db    *sql.DB
	conn  *sql.Conn
	stmts statements
	// ids are the ids of resources. A transaction that fails clears it, because it may have
	// inserted some of them.
	ids map[sqlstore.Resource]int64
}

// newWriter makes a writer on db, which it closes with the writer, or when it fails.
func newWriter(ctx context.Context, db *sql.DB) (_ *writer, err error) {
	w := &writer{db: db, ids: make(map[sqlstore.Resource]int64)}
	if w.conn, err = w.db.Conn(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	if w.stmts, err = prepare(ctx, w.conn,
		begin, commit, rollback, insertObject, updateObject, deleteObject, selectResource, insertResource,
		insertCreate, insertReplaced, isMet, isInUse, selectRevision, touchStore, untouchStore,
		selectOldest, deleteChanges, updateHistory, updateCompacted, updateRetainedFor, vacuum,
		insertNote, updateNote, deleteNote,
	); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *writer) close() error {
	errs := []error{w.stmts.close()}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	return errors.Join(append(errs, w.db.Close())...)
}

// transaction runs f in a transaction. It takes no context, because database/sql runs a
// goroutine for each statement whose context can end, and the transaction is short.
func (w *writer) transaction(f func() error) error {
	if err := w.start(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(); err != nil {
		clear(w.ids)
		// After some errors SQLite has rolled back already, and this ROLLBACK fails.
		_, _ = w.stmts[rollback].Exec()
		return err
	}
	if _, err := w.stmts[commit].Exec(); err != nil {
		clear(w.ids)
		_, _ = w.stmts[rollback].Exec()
		return &commitError{err}
	}
	return nil
}

// start begins a transaction. If an earlier transaction could be neither committed nor rolled
// back, it is still open, and BEGIN fails with SQLITE_ERROR. start then rolls back and begins
// again. It returns every other error, such as another process's lock or a failing disk.
func (w *writer) start() error {
	_, err := w.stmts[begin].Exec()
	if !hasCode(err, sqlite3.SQLITE_ERROR) {
		return err
	}
	if _, rollbackErr := w.stmts[rollback].Exec(); rollbackErr != nil {
		return errors.Join(err, fmt.Errorf("rollback: %w", rollbackErr))
	}
	_, err = w.stmts[begin].Exec()
	return err
}

// apply makes the writes whose preconditions hold, sets the outcomes of all, and increments
// state.Revision for each write that it makes.
func (w *writer) apply(
	batch []sqlstore.Write, outcomes []sqlstore.Outcome, state *sqlstore.State, now time.Time,
) error {
	stamp := formatTime(now)
	for i := range batch {
		outcome, err := w.checkOthers(&batch[i])
		switch {
		case err != nil || outcome != nil:
			outcomes[i].Err = outcome
		case batch[i].Op == sqlstore.Create:
			outcomes[i], err = w.create(&batch[i], state.Revision+1, stamp)
		default:
			outcomes[i], err = w.replace(&batch[i], state.Revision+1, stamp)
		}
		if err != nil {
			return err
		}
		if outcomes[i].Err == nil {
			state.Revision++
			outcomes[i].Revision, outcomes[i].Time = state.Revision, now
		}
	}
	if len(batch) == 0 {
		return w.touchStore()
	}
	return nil
}

// checkOthers returns in outcome which precondition on other objects does not hold.
func (w *writer) checkOthers(c *sqlstore.Write) (outcome, err error) {
	if r := c.Requires; r != nil {
		found, err := w.exists(isMet, r.Key.Of(), r.Key.Namespace, r.Key.Name, r.UID, r.Generation)
		if err != nil || !found {
			return sqlstore.ErrRequired, err
		}
	}
	if c.RequiresNone != nil {
		found, err := w.exists(isInUse, *c.RequiresNone)
		if err != nil || found {
			return sqlstore.ErrInUse, err
		}
	}
	return nil, nil
}

// exists reports whether a query on a resource returns a row.
func (w *writer) exists(query string, of sqlstore.Resource, arguments ...any) (bool, error) {
	id, err := w.resourceID(of)
	if err != nil {
		return false, err
	}
	var one int
	err = w.stmts[query].QueryRow(append([]any{id}, arguments...)...).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// touchStore has the transaction write a page to the log, so that it fails if the file can't
// be written. It changes a value and changes it back, because an UPDATE that changes nothing
// writes no page.
func (w *writer) touchStore() error {
	if _, err := w.stmts[touchStore].Exec(); err != nil {
		return err
	}
	_, err := w.stmts[untouchStore].Exec()
	return err
}

// create inserts a record and its change. If the key exists, the unique index refuses the
// record, and the outcome has ErrExists.
func (w *writer) create(c *sqlstore.Write, revision int64, stamp string) (sqlstore.Outcome, error) {
	k, a := c.Key, c.Author
	id, err := w.resourceID(k.Of())
	if err == nil && id == 0 {
		id, err = w.addResource(k.Of())
	}
	if err != nil {
		return sqlstore.Outcome{}, err
	}
	_, err = w.stmts[insertObject].Exec(revision, id, k.Namespace, k.Name, c.UID, c.Generation, revision,
		stamp, a.Verb, a.Subresource, a.Manager, a.User, a.RealUser, c.Encoding, formatExpiry(c.Expires),
		sqlstore.Text(c.Value),
		recordSum(k, c.UID, revision, revision, c.Encoding, expiryText(c.Expires), sqlstore.Text(c.Value)),
		writtenSum(k, revision, stamp, a, c.Generation))
	if err != nil {
		if isDuplicate(err) {
			return sqlstore.Outcome{Err: sqlstore.ErrExists}, nil
		}
		return sqlstore.Outcome{}, fmt.Errorf("insert object: %w", err)
	}
	if _, err := w.stmts[insertCreate].Exec(revision, stamp, a.Verb, a.Subresource, a.Manager, a.User, a.RealUser,
		a.AuditID,
		id, k.Namespace, k.Name, c.UID, revision, changeSum(k, revision, stamp, c.Op, a, 0)); err != nil {
		return sqlstore.Outcome{}, fmt.Errorf("insert change: %w", err)
	}
	return sqlstore.Outcome{Created: revision}, nil
}

// replace updates or deletes a record, and inserts the change. If the record is not at the
// revision that c replaces, the outcome has ErrNotFound or a *ConflictError.
func (w *writer) replace(c *sqlstore.Write, revision int64, stamp string) (o sqlstore.Outcome, err error) {
	k, a := c.Key, c.Author
	id, err := w.resourceID(k.Of())
	if err != nil {
		return o, err
	}
	err = w.stmts[insertReplaced].QueryRow(revision, stamp, string(c.Op), a.Verb, a.Subresource, a.Manager, a.User,
		a.RealUser, a.AuditID,
		changeSum(k, revision, stamp, c.Op, a, c.Replaces),
		id, k.Namespace, k.Name, c.Replaces).Scan(&o.Created, &o.UID, &o.OldBytes)
	if errors.Is(err, sql.ErrNoRows) {
		o.Err, err = w.mismatch(id, k)
		return o, err
	}
	if err != nil {
		return o, fmt.Errorf("insert change: %w", err)
	}
	if c.Op == sqlstore.Delete {
		_, err = w.stmts[deleteObject].Exec(o.Created)
	} else {
		_, err = w.stmts[updateObject].Exec(revision, c.UID, c.Generation, stamp, a.Verb, a.Subresource, a.Manager, a.User,
			a.RealUser, c.Encoding,
			formatExpiry(c.Expires), sqlstore.Text(c.Value),
			recordSum(k, c.UID, o.Created, revision, c.Encoding, expiryText(c.Expires), sqlstore.Text(c.Value)),
			writtenSum(k, revision, stamp, a, c.Generation), o.Created)
	}
	if err != nil {
		return o, fmt.Errorf("%s object: %w", c.Op, err)
	}
	return o, nil
}

// mismatch returns in outcome why there is no record under a key at the expected revision.
func (w *writer) mismatch(id int64, k sqlstore.Key) (outcome, err error) {
	var current int64
	err = w.stmts[selectRevision].QueryRow(id, k.Namespace, k.Name).Scan(&current)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return sqlstore.ErrNotFound, nil
	case err != nil:
		return nil, fmt.Errorf("select revision: %w", err)
	}
	return &sqlstore.ConflictError{Current: current}, nil
}

// resourceID returns the id of a resource; 0 if there was never an object of it.
func (w *writer) resourceID(of sqlstore.Resource) (id int64, err error) {
	if id, ok := w.ids[of]; ok {
		return id, nil
	}
	err = w.stmts[selectResource].QueryRow(of.Group, of.Resource, of.Owner.String()).Scan(&id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("select resource: %w", err)
	}
	w.ids[of] = id
	return id, nil
}

func (w *writer) addResource(of sqlstore.Resource) (id int64, err error) {
	result, err := w.stmts[insertResource].Exec(of.Group, of.Resource, of.Owner.String())
	if err == nil {
		id, err = result.LastInsertId()
	}
	if err != nil {
		return 0, fmt.Errorf("insert resource: %w", err)
	}
	w.ids[of] = id
	return id, nil
}
