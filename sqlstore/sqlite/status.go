package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"byre/sqlstore"
)

// Usage implements sqlstore.Driver.
func (d *Driver) Usage(ctx context.Context) (usage sqlstore.Usage, err error) {
	if err := d.committer.flushAll(); err != nil {
		return usage, err
	}
	err = d.readers.snapshot(ctx, nil, func(tx *sql.Tx, state sqlstore.State) (err error) {
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
	s.Reserve, s.NeededFree, s.IsReserveMissing = d.reserve.measure()
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
		return fmt.Errorf("%w: the database file is at revision %d, and was at %d", sqlstore.ErrUnavailable, stored.Revision, known)
	}
	return nil
}
