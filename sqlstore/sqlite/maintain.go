package sqlite

import (
	"context"
	"errors"
	"time"

	"byre/sqlstore"
)

// Compact implements sqlstore.Driver. Revisions being dense, limit changes are
// a range of the primary key.
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
	if upTo <= state.Compacted {
		return true, nil
	}
	state.Compacted = min(upTo, state.Compacted+int64(limit))
	w := d.writer
	err = w.transaction(func() error {
		if _, err := w.deleteChanges.Exec(state.Compacted); err != nil {
			return err
		}
		if _, err := w.updateCompacted.Exec(state.Compacted); err != nil {
			return err
		}
		_, err := w.vacuum.Exec()
		return err
	})
	if err != nil {
		return false, d.translate(err)
	}
	d.state.Store(&state)
	d.walGrew()
	return state.Compacted == upTo, nil
}

const (
	// checkpointPause is how long the log may grow before it is copied back.
	checkpointPause = 500 * time.Millisecond
	// checkpoint copies what no reader needs in the log back into the file and
	// waits for nobody. When the writer finds all of it copied it starts the
	// log over; the little it added meanwhile it copies itself at LogPages.
	checkpoint = `PRAGMA wal_checkpoint(PASSIVE)`
)

// Maintain implements sqlstore.Maintainer: it copies the log back into the file.
func (d *Driver) Maintain(ctx context.Context) error {
	pause := time.NewTicker(checkpointPause)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.grown:
		}
		if _, err := d.maintenance.ExecContext(ctx, checkpoint); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			// Busy or a full disk: the writer's own checkpoint is still there.
			if err := d.translate(err); !errors.Is(err, sqlstore.ErrUnavailable) {
				return err
			}
		}
	}
}

func (d *Driver) walGrew() {
	select {
	case d.grown <- struct{}{}:
	default:
	}
}
