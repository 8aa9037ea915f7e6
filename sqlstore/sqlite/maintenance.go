package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"byre/sqlstore"
)

// DeleteHistory implements sqlstore.Driver.
func (d *Driver) DeleteHistory(
	ctx context.Context, deletion sqlstore.Deletion,
) (deleted int, waited time.Duration, err error) {
	if r := d.options.Replication; r != nil {
		r.AwaitDetached(ctx)
	}
	err = d.committer.change(ctx, func(state *sqlstore.State) (err error) {
		deleted, err = d.committer.writer.deleteHistory(deletion, state)
		return err
	})
	return deleted, 0, err
}

// deleteHistory makes a deletion, and moves state.Compacted forward.
func (w *writer) deleteHistory(d sqlstore.Deletion, state *sqlstore.State) (deleted int, err error) {
	id, err := w.resourceID(d.Of)
	if err != nil || id == 0 {
		return 0, err
	}
	last, deleted, err := w.oldest(id, d)
	if err != nil {
		return 0, err
	}
	if d.Before.IsZero() && deleted < d.Limit {
		last = min(d.UpTo, state.Revision)
	}
	if last == 0 {
		return 0, nil
	}
	state.Compacted = max(state.Compacted, last)
	for _, update := range []struct {
		query     string
		arguments []any
	}{{deleteChanges, []any{id, last}}, {updateHistory, []any{id, last}}, {updateCompacted, []any{last}}} {
		if _, err := w.stmts[update.query].Exec(update.arguments...); err != nil {
			return 0, err
		}
	}
	return deleted, nil
}

// oldest returns how many changes a deletion deletes, and the revision of the last one.
func (w *writer) oldest(id int64, d sqlstore.Deletion) (last int64, count int, err error) {
	before := formatTime(d.Before)
	var stamp string
	for revision, err := range each(func(rows *sql.Rows) (revision int64, err error) {
		err = rows.Scan(&revision, &stamp)
		return revision, err
	})(w.stmts[selectOldest].Query(id, d.UpTo, d.Limit)) { //nolint:rowserrcheck // each checks it
		if err != nil {
			return 0, 0, err
		}
		// The order of the texts is that of the times.
		if !d.Before.IsZero() && stamp >= before {
			break
		}
		last = revision
		count++
	}
	return last, count, nil
}

const (
	// The file keeps keptPages free pages, or one in keptShare of its pages if that is
	// more, for the next changes. To return a page costs moving another one, and growing
	// the file again later.
	keptPages, keptShare = 128, 10
)

// Shrink implements sqlstore.Exclusive.
//
// How long a page takes depends on the file: SQLite writes up to three pages for each, and
// looks for it in the list of all free pages, one after the other. With 600,000 of them a page
// took 0.8 ms. The caller bounds the time of a call by its limit.
func (d *Driver) Shrink(ctx context.Context, limit int) (done bool, err error) {
	var free, pages int
	if err := d.readers.db.QueryRowContext(ctx, selectPages).Scan(&free, &pages); err != nil {
		return false, d.file.translate(err)
	}
	excess := free - max(keptPages, pages/keptShare)
	if excess <= 0 {
		return true, nil
	}
	err = d.committer.change(ctx, func(*sqlstore.State) error { return d.committer.writer.vacuumSome(limit) })
	return err == nil && excess <= limit, err
}

// Rewrite has SQLite write the file anew if it has more free pages than Shrink leaves. That takes a fraction of the
// time that Shrink takes of each page, twice the space of the pages in use, and all of the writers' time: it is for
// a process that serves nobody.
func (d *Driver) Rewrite(ctx context.Context) error {
	if done, err := d.Shrink(ctx, 0); err != nil || done {
		return err
	}
	c := &d.committer
	c.writing.Lock()
	defer c.writing.Unlock()
	for _, statement := range []string{`VACUUM`, `PRAGMA wal_checkpoint(TRUNCATE)`} {
		if _, err := c.writer.conn.ExecContext(ctx, statement); err != nil {
			return d.file.translate(err)
		}
	}
	return nil
}

// vacuumSome returns up to limit free pages to the file system.
func (w *writer) vacuumSome(limit int) error {
	rows, err := w.stmts[vacuum].Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for n := 0; n < limit && rows.Next(); n++ {
	}
	return rows.Err()
}

const (
	// checkpointPause is the time between two measurements of the log while it grows.
	checkpointPause = 500 * time.Millisecond
	// checkpointPages is the length of the log, in pages of 4 kB, at which Maintain copies
	// it back into the file: 16 MiB. A checkpoint syncs twice and writes each page once,
	// however many commits have changed the page since the last checkpoint.
	checkpointPages = 4096
	// reservePages is that length on a full disk. There the log is truncated too.
	reservePages = 1
	// checkpointIdle is how long after the last commit Maintain copies the log back,
	// whatever its length, so that the file alone is complete while nothing is written:
	// it is what cp copies.
	checkpointIdle = 5 * time.Second
	// checkpoint copies the part of the log that no reader needs back into the file. It
	// waits for no reader and no writer. When all of the log is copied back, the writer
	// starts the log over. If that never happens, the writer runs a checkpoint of its own
	// at Options.copyPages.
	checkpoint = `PRAGMA wal_checkpoint(PASSIVE)`
	// truncateLog returns the space of a log that is copied back. It fails at once, or does nothing, if a reader or
	// writer uses the log.
	truncateLog = `PRAGMA wal_checkpoint(TRUNCATE)`
	// measureLog returns how many pages the log has, and how many of them are copied back.
	measureLog = `PRAGMA wal_checkpoint(NOOP)`
)

// checkpointer copies the log back into the file.
type checkpointer struct {
	file    *file
	db      *sql.DB
	options *Options
	// isFull reports whether the disk is full.
	isFull func() bool
	// grown receives when the log has grown since the last measurement. Its capacity is 1.
	grown chan struct{}

	// mu guards the fields below. blocked is when a part of the log that is long enough could first not be copied back, of
	// which copied pages were; zero if it could.
	mu      sync.Mutex
	blocked time.Time
	copied  int
	// isLong is true from the line that says that the log is too long.
	isLong bool
}

// Maintain implements sqlstore.Driver. Until ctx ends it copies the log back into the file,
// and flushes volatile changes that are due.
func (d *Driver) Maintain(ctx context.Context) error {
	if r := d.options.Replication; r != nil {
		ctx, cancel := context.WithCancel(ctx)
		var replicating sync.WaitGroup
		replicating.Go(func() { r.Run(ctx) })
		defer replicating.Wait()
		defer cancel()
	}
	pause := time.NewTicker(checkpointPause)
	defer pause.Stop()
	idle := time.NewTimer(checkpointIdle)
	defer idle.Stop()
	flush := time.NewTimer(flushInterval)
	defer flush.Stop()
	for {
		var next time.Duration
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-flush.C:
			// Maintain tries a flush that failed again. The error is not lost: the next
			// write fails with it too.
			next, err = d.committer.flush(flushInterval)
			flush.Reset(next)
		case <-pause.C:
			select {
			case <-d.checkpointer.grown:
				idle.Reset(checkpointIdle)
				err = d.checkpointer.run(ctx, measureLog)
			default:
				// The reader may have ended. On a full disk the log may have more space to return.
				if d.checkpointer.blockedFor(time.Now()) > 0 || d.reserve.isInUse.Load() {
					err = d.checkpointer.run(ctx, measureLog)
				}
			}
		case <-idle.C:
			err = d.checkpointer.run(ctx, checkpoint)
		}
		if ctx.Err() != nil {
			return nil
		}
		// Maintain continues if the database is busy or the disk is full. The writer's own
		// checkpoints bound the log meanwhile.
		if err != nil && !errors.Is(err, sqlstore.ErrUnavailable) && !errors.Is(err, sqlstore.ErrClosed) {
			return err
		}
	}
}

// run executes checkpoint or measureLog. After measureLog it executes checkpoint if the
// part of the log that is not copied back is long enough. While the database is replicated, it only
// measures: the log must stay until its pages are copied, and the replication runs the checkpoints.
func (c *checkpointer) run(ctx context.Context, statement string) error {
	isAttached := c.options.Replication != nil && c.options.Replication.Attached()
	if isAttached {
		statement = measureLog
	}
	var busy, pages, copied int
	err := c.db.QueryRowContext(ctx, statement).Scan(&busy, &pages, &copied)
	enough, isFull := min(checkpointPages, c.options.copyPages()*2/3), c.isFull()
	if isFull {
		enough = reservePages
	}
	if err == nil && !isAttached && statement == measureLog && pages-copied >= enough {
		err = c.db.QueryRowContext(ctx, checkpoint).Scan(&busy, &pages, &copied)
	}
	if err == nil {
		c.record(ctx, pages-copied >= enough, copied, time.Now())
	}
	if err == nil && !isAttached && isFull && 0 < pages && pages == copied {
		_, err = c.db.ExecContext(ctx, truncateLog)
	}
	return c.file.translate(err)
}

// record notes whether a part of the log that is long enough is not copied back, and logs when the log becomes too
// long, and when it is not any more.
func (c *checkpointer) record(ctx context.Context, isBlocked bool, copied int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isBlocked {
		c.blocked = time.Time{}
	} else if c.blocked.IsZero() || copied != c.copied {
		c.blocked = now // the reader before has ended
	}
	c.copied = copied
	size, err := c.size()
	switch {
	case err != nil:
	case !c.isLong && size >= 2*c.options.logLimit():
		c.isLong = true
		c.options.Logger.ErrorContext(ctx, "store: the write-ahead log grows, because a reader stays in a transaction: "+
			"end that program; \"fuser -v\" and the path name those that have the file open",
			"path", c.file.path, "bytes", size, "limit", c.options.logLimit(),
			"seconds", int(now.Sub(cmp.Or(c.blocked, now)).Seconds()))
	case c.isLong && size <= c.options.logLimit():
		c.isLong = false
		c.options.Logger.InfoContext(ctx, "store: the write-ahead log is short again", "path", c.file.path, "bytes", size)
	}
}

// blockedFor returns for how long at least a reader has kept a part of the log from being copied back; 0 if none does.
func (c *checkpointer) blockedFor(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked.IsZero() {
		return 0
	}
	return max(now.Sub(c.blocked), 1)
}

// size returns the size of the log in bytes.
func (c *checkpointer) size() (int64, error) {
	info, err := os.Stat(c.file.path + "-wal")
	if err != nil {
		return 0, fmt.Errorf("%w: size of the log: %w", sqlstore.ErrUnavailable, err)
	}
	return info.Size(), nil
}

// signalGrown has Maintain measure the log, and the replication copy it. The database has all changes up to a revision.
func (c *checkpointer) signalGrown(revision int64) {
	if c.options.Replication != nil {
		c.options.Replication.Committed(revision)
	}
	select {
	case c.grown <- struct{}{}:
	default:
	}
}

// Histories implements sqlstore.Driver.
func (d *Driver) Histories(ctx context.Context) ([]sqlstore.History, error) {
	if err := d.committer.flushAll(); err != nil {
		return nil, err
	}
	histories, err := collect(scanHistory)(d.readers.db.QueryContext(ctx, selectHistories)) //nolint:rowserrcheck // collect checks it
	return histories, d.file.translate(err)
}

// scanHistory reads a row of selectHistories.
func scanHistory(rows *sql.Rows) (h sqlstore.History, err error) {
	var seconds int64
	var first sql.NullInt64
	var stamp sql.NullString
	if err := rows.Scan(&h.Group, &h.Resource.Resource, &h.Owner, &h.ResumableAfter, &h.CompleteAfter, &seconds, &first,
		&stamp); err != nil {
		return h, err
	}
	h.RetainedFor = time.Duration(seconds) * time.Second
	if h.First = first.Int64; first.Valid {
		h.FirstTime, err = parseTime(stamp.String)
	}
	return h, err
}

// Compacted implements sqlstore.Driver.
func (d *Driver) Compacted(ctx context.Context, of sqlstore.Resource) (compacted int64, err error) {
	err = d.readers.snapshot(ctx, &of, selectCompacted, func(_ *sql.Tx, state sqlstore.State) error {
		compacted = state.Compacted
		return nil
	})
	return compacted, d.file.translate(err)
}

// RevisionAt implements sqlstore.Driver.
func (d *Driver) RevisionAt(ctx context.Context, moment time.Time) (revision int64, err error) {
	if err := d.committer.flushAll(); err != nil {
		return 0, err
	}
	err = d.readers.db.QueryRowContext(ctx, selectRevisionAt, formatTime(moment)).Scan(&revision)
	return revision, d.file.translate(err)
}

// SetRetainedFor implements sqlstore.Driver.
func (d *Driver) SetRetainedFor(ctx context.Context, ages map[sqlstore.Resource]time.Duration) error {
	return d.committer.change(ctx, func(*sqlstore.State) error {
		for of, age := range ages {
			if _, err := d.committer.writer.stmts[updateRetainedFor].Exec(int64(age/time.Second), of.Group, of.Resource,
				of.Owner.String()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Notes implements sqlstore.Driver.
func (d *Driver) Notes(ctx context.Context, prefix string) (map[string]string, error) {
	notes := map[string]string{}
	_, err := collect(func(rows *sql.Rows) (_ struct{}, err error) {
		var name, value string
		err = rows.Scan(&name, &value)
		notes[name] = value
		return struct{}{}, err
	})(d.readers.db.QueryContext(ctx, selectNotes, prefix, sqlstore.AfterNotes(prefix))) //nolint:rowserrcheck // collect checks it
	return notes, d.file.translate(err)
}

// SetNote implements sqlstore.Driver.
func (d *Driver) SetNote(ctx context.Context, name, old, value string) (done bool, err error) {
	err = d.committer.change(ctx, func(*sqlstore.State) error {
		result, err := d.committer.writer.stmts[noteStatement(old, value)].Exec(name, old, value)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		done = n == 1
		return err
	})
	return done && err == nil, err
}

func noteStatement(old, value string) string {
	switch {
	case old == "":
		return insertNote
	case value == "":
		return deleteNote
	}
	return updateNote
}

// CountChanges implements sqlstore.Driver.
func (d *Driver) CountChanges(
	ctx context.Context, of sqlstore.Resource, upTo, limit int64,
) (count, oldest int64, err error) {
	if _, err := d.committer.flushUnlessCovered(0, &of); err != nil {
		return 0, 0, err
	}
	row := d.readers.db.QueryRowContext(ctx, countChanges, of.Group, of.Resource, of.Owner.String(), upTo, limit)
	err = row.Scan(&count, &oldest)
	return count, oldest, d.file.translate(err)
}

// Usage implements sqlstore.Driver.
func (d *Driver) Usage(ctx context.Context) (usage sqlstore.Usage, err error) {
	if err := d.committer.flushAll(); err != nil {
		return usage, err
	}
	err = d.readers.snapshot(ctx, nil, "", func(tx *sql.Tx, state sqlstore.State) (err error) {
		usage.Revision = state.Revision
		usage.Resources, err = collect(func(rows *sql.Rows) (r sqlstore.ResourceUsage, err error) {
			err = rows.Scan(&r.Group, &r.Resource, &r.Owner, &r.Objects, &r.Bytes)
			return r, err
		})(tx.QueryContext(ctx, selectUsage)) //nolint:rowserrcheck // collect checks it
		return err
	})
	return usage, err
}

// Used implements sqlstore.Driver: it returns the size of the file without its free pages. Of the
// write-ahead log that counts which is beyond its limit, 64 MiB by default, because of a reader that stays.
func (d *Driver) Used(ctx context.Context) (used int64, err error) {
	if err := d.readers.db.QueryRowContext(ctx, selectUsed).Scan(&used); err != nil {
		return 0, d.file.translate(err)
	}
	log, err := d.checkpointer.size()
	return used + max(0, log-d.options.logLimit()), err
}

// Space implements sqlstore.Exclusive.
func (d *Driver) Space() (s sqlstore.Space, err error) {
	if s.Free, err = freeSpace(d.file.path); err != nil {
		return s, fmt.Errorf("%w: free space of the disk: %w", sqlstore.ErrUnavailable, err)
	}
	s.NeededFree, s.IsReserveMissing = d.reserve.measure()
	s.Log, err = d.checkpointer.size()
	s.LogLimit, s.Reader = d.options.logLimit(), d.checkpointer.blockedFor(time.Now())
	return s, err
}

// Size implements sqlstore.Driver: it returns the size of the file and of its write-ahead log.
func (d *Driver) Size(context.Context) (int64, error) {
	info, err := os.Stat(d.file.path)
	if err != nil {
		return 0, fmt.Errorf("%w: size of the database: %w", sqlstore.ErrUnavailable, err)
	}
	log, err := d.checkpointer.size()
	return info.Size() + log, err
}

// errNotOurs means that the path does not lead to the file that the driver has open.
var errNotOurs = errors.New("the database file was removed or replaced while it is in use")

// Probe implements sqlstore.Exclusive. It opens the file at path again and reads the state. The
// open connections would not notice that the file was deleted: they keep reading their caches
// and the deleted file.
func (d *Driver) Probe(ctx context.Context) error {
	file, err := os.Stat(d.file.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errNotOurs)
	case err != nil:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, err)
	case !os.SameFile(file, d.info):
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errNotOurs)
	}
	db := d.file.connect(1, d.file.reading())
	defer db.Close()
	known := d.committer.buffer.durable()
	var stored sqlstore.State
	if err := db.QueryRowContext(ctx, selectState).Scan(&stored.Revision, &stored.Compacted, &stored.Epoch); err != nil {
		return d.file.translate(err)
	}
	if stored.Revision < known {
		return fmt.Errorf("%w: the database file is at revision %d, and was at %d", sqlstore.ErrUnavailable, stored.Revision,
			known)
	}
	return nil
}
