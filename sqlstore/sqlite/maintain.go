package sqlite

import (
	"context"
	"errors"
	"time"

	"byre/sqlstore"
)

// Compact implements sqlstore.Driver. Revisions being dense, limit changes are
// a range of the primary key.
//
// The calls after the one that has deleted the last change give space back, some pages
// each. Given back earlier, a page of later changes would be moved into the space of
// earlier ones, and deleted soon afterwards.
func (d *Driver) Compact(ctx context.Context, upTo int64, limit int) (done bool, err error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.writer.closed {
		return false, sqlstore.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	state := *d.state.Load()
	upTo = min(upTo, state.Revision)
	w := d.writer
	if upTo <= state.Compacted {
		return d.giveBack(&state)
	}
	var deleted int64
	var excess int
	err = d.transaction(&state, func() error {
		// A skip of revisions leaves changes from before it, and a gap.
		var oldest int64
		if err := w.selectOldest.QueryRow().Scan(&oldest); err != nil {
			return err
		}
		deleted = min(upTo, oldest-1+int64(limit))
		state.Compacted = max(state.Compacted, deleted)
		if _, err := w.deleteChanges.Exec(deleted); err != nil {
			return err
		}
		if _, err := w.updateCompacted.Exec(state.Compacted); err != nil {
			return err
		}
		excess, err = w.excessPages()
		return err
	})
	if err != nil {
		return false, d.translate(err)
	}
	d.state.Store(&state)
	d.walGrew()
	return deleted == upTo && excess <= 0, nil
}

const (
	// vacuumPages is how many pages one transaction gives back: for each, up to three are
	// written.
	vacuumPages = 500
	// keptPages is how many free pages are kept in any case, and one in keptShare of all
	// pages: the next changes take them. To give a page back another one is moved, and
	// later the file grows again.
	keptPages, keptShare = 128, 10
)

// giveBack shrinks the file by some pages if it has many free ones. done is true when it
// has few.
func (d *Driver) giveBack(state *sqlstore.State) (done bool, err error) {
	excess, err := d.writer.excessPages()
	if err != nil || excess <= 0 {
		return true, d.translate(err)
	}
	if err := d.transaction(state, d.writer.vacuumSome); err != nil {
		return false, d.translate(err)
	}
	d.walGrew()
	return excess <= vacuumPages, nil
}

// excessPages is how many free pages there are to give back. It is negative if there are
// fewer than are kept.
func (w *writer) excessPages() (int, error) {
	var free, pages int
	err := w.selectPages.QueryRow().Scan(&free, &pages)
	return free - max(keptPages, pages/keptShare), err
}

// vacuumSome gives vacuumPages back.
func (w *writer) vacuumSome() error {
	_, err := w.vacuum.Exec()
	return err
}

const (
	// checkpointPause is how often the log's length is looked at, while it grows.
	checkpointPause = 500 * time.Millisecond
	// checkpointPages is the length of the log, in pages of 4 kB, at which it is copied
	// back into the file: 16 MiB. A checkpoint syncs twice and writes each page once,
	// however many commits have changed it since the last one.
	checkpointPages = 4096
	// checkpointIdle is how long after the last commit the log is copied back whatever
	// its length, so that the file alone is nearly complete when nothing is written.
	checkpointIdle = 5 * time.Minute
	// checkpoint copies what no reader needs in the log back into the file and
	// waits for nobody. When the writer finds all of it copied it starts the
	// log over; the little it added meanwhile it copies itself at LogPages.
	checkpoint = `PRAGMA wal_checkpoint(PASSIVE)`
	// measureLog says how long the log is and how much of it is copied, in pages.
	measureLog = `PRAGMA wal_checkpoint(NOOP)`
)

// Maintain implements sqlstore.Maintainer: it copies the log back into the file.
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
			// A flush that failed is tried again, and the next write fails for the same
			// reason.
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
			// If the database is busy or the disk is full, the writer's own checkpoint
			// still bounds the log.
			if err := d.translate(err); !errors.Is(err, sqlstore.ErrUnavailable) {
				return err
			}
		}
	}
}

// maintain copies the log back if that is the statement, or if the log has grown long
// enough.
func (d *Driver) maintain(ctx context.Context, statement string) error {
	var busy, pages, copied int
	err := d.maintenance.QueryRowContext(ctx, statement).Scan(&busy, &pages, &copied)
	if err != nil || statement == checkpoint || pages-copied < min(checkpointPages, d.options.LogPages/2) {
		return err
	}
	return d.maintenance.QueryRowContext(ctx, checkpoint).Scan(&busy, &pages, &copied)
}

func (d *Driver) walGrew() {
	select {
	case d.grown <- struct{}{}:
	default:
	}
}
