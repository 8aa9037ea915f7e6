package sqlite

import (
	"context"
	"errors"
	"time"

	"byre/sqlstore"
)

// Compact implements sqlstore.Driver. Revisions are dense, so that limit changes are a range of
// the primary key.
//
// The calls after the one that has deleted the last change shrink the file, by up to limit
// pages each, until few pages are free; only then done is true. Earlier calls don't: SQLite
// would move pages of changes that the next calls delete.
func (d *Driver) Compact(ctx context.Context, upTo int64, limit int) (deleted int64, done bool, err error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.writer.closed {
		return 0, false, sqlstore.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return 0, false, err
	}
	state := *d.state.Load()
	upTo = min(upTo, state.Revision)
	w := d.writer
	if upTo <= state.Compacted {
		done, err = d.shrink(&state, limit)
		return 0, done, err
	}
	var last int64
	var excess int
	err = d.transaction(&state, func() error {
		// After a skip of revisions (openMemory) there are changes of before it, which
		// are compacted already, and then a gap.
		var oldest int64
		if err := w.selectOldest.QueryRow().Scan(&oldest); err != nil {
			return err
		}
		last = min(upTo, oldest-1+int64(limit))
		state.Compacted = max(state.Compacted, last)
		result, err := w.deleteChanges.Exec(last)
		if err != nil {
			return err
		}
		if deleted, err = result.RowsAffected(); err != nil {
			return err
		}
		if _, err := w.updateCompacted.Exec(state.Compacted); err != nil {
			return err
		}
		excess, err = w.excessPages()
		return err
	})
	if err != nil {
		return 0, false, d.translate(err)
	}
	d.state.Store(&state)
	d.signalLogGrown()
	return deleted, last == upTo && excess <= 0, nil
}

const (
	// The file keeps keptPages free pages, or one in keptShare of its pages if that is
	// more, for the next changes. To return a page costs moving another one, and growing
	// the file again later.
	keptPages, keptShare = 128, 10
)

// shrink returns up to limit free pages to the file system. done is true if no more are to be
// returned.
//
// How long a page takes depends on the file: SQLite writes up to three pages for each, and
// looks for it in the list of all free pages, one after the other. With 600,000 of them a page
// took 0.8 ms. The caller bounds the time of a call by its limit.
func (d *Driver) shrink(state *sqlstore.State, limit int) (done bool, err error) {
	excess, err := d.writer.excessPages()
	if err != nil || excess <= 0 {
		return true, d.translate(err)
	}
	if err := d.transaction(state, func() error { return d.writer.vacuumSome(limit) }); err != nil {
		return false, d.translate(err)
	}
	d.signalLogGrown()
	return excess <= limit, nil
}

// excessPages returns how many more free pages the file has than it is to keep. The number is
// negative if it has fewer.
func (w *writer) excessPages() (int, error) {
	var free, pages int
	err := w.selectPages.QueryRow().Scan(&free, &pages)
	return free - max(keptPages, pages/keptShare), err
}

// vacuumSome returns up to limit free pages to the file system.
func (w *writer) vacuumSome(limit int) error {
	rows, err := w.vacuum.Query()
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
	// reservePages is that length on a full disk: a log that is copied back starts over in the
	// space that it has, and the file becomes smaller only then.
	reservePages = 1
	// checkpointIdle is how long after the last commit Maintain copies the log back,
	// whatever its length, so that the file alone is nearly complete while nothing is
	// written.
	checkpointIdle = 5 * time.Minute
	// checkpoint copies the part of the log that no reader needs back into the file. It
	// waits for no reader and no writer. When all of the log is copied back, the writer
	// starts the log over. If that never happens, the writer runs a checkpoint of its own
	// at Options.LogPages.
	checkpoint = `PRAGMA wal_checkpoint(PASSIVE)`
	// measureLog returns how many pages the log has, and how many of them are copied back.
	measureLog = `PRAGMA wal_checkpoint(NOOP)`
)

// Maintain implements sqlstore.Maintainer. Until ctx ends it copies the log back into the file,
// and flushes volatile changes that are due.
func (d *Driver) Maintain(ctx context.Context) error {
	pause := time.NewTicker(checkpointPause)
	defer pause.Stop()
	idle := time.NewTimer(checkpointIdle)
	defer idle.Stop()
	flush := time.NewTimer(d.options.FlushInterval)
	defer flush.Stop()
	for {
		statement := measureLog
		select {
		case <-ctx.Done():
			return nil
		case <-flush.C:
			// Maintain tries a flush that failed again. The error is not lost: the next
			// write fails with it too.
			next, err := d.flushDue()
			if err != nil && !errors.Is(err, sqlstore.ErrUnavailable) && !errors.Is(err, sqlstore.ErrClosed) {
				return err
			}
			flush.Reset(next)
			continue
		case <-pause.C:
			select {
			case <-d.grown:
				idle.Reset(checkpointIdle)
			default:
				continue
			}
		case <-idle.C:
			statement = checkpoint
		}
		if err := d.maintain(ctx, statement); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			// Maintain continues if the database is busy or the disk is full. The
			// writer's own checkpoints bound the log meanwhile.
			if err := d.translate(err); !errors.Is(err, sqlstore.ErrUnavailable) {
				return err
			}
		}
	}
}

// maintain executes checkpoint or measureLog. After measureLog it executes checkpoint if the
// part of the log that is not copied back is long enough.
func (d *Driver) maintain(ctx context.Context, statement string) error {
	var busy, pages, copied int
	err := d.maintenance.QueryRowContext(ctx, statement).Scan(&busy, &pages, &copied)
	enough := min(checkpointPages, d.options.LogPages/2)
	if d.reserve.isInUse.Load() {
		enough = reservePages
	}
	if err != nil || statement == checkpoint || pages-copied < enough {
		return err
	}
	return d.maintenance.QueryRowContext(ctx, checkpoint).Scan(&busy, &pages, &copied)
}

// signalLogGrown has Maintain measure the log.
func (d *Driver) signalLogGrown() {
	select {
	case d.grown <- struct{}{}:
	default:
	}
}
