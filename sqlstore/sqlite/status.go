package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

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

// Used implements sqlstore.Driver: it returns the size of the file without its free pages. The
// write-ahead log, 64 MiB by default, does not count.
func (d *Driver) Used(ctx context.Context) (used int64, err error) {
	err = d.readers.db.QueryRowContext(ctx, selectUsed).Scan(&used)
	return used, d.file.translate(err)
}

// Size implements sqlstore.Driver: it returns the size of the file and of its write-ahead log.
func (d *Driver) Size(context.Context) (int64, error) {
	size := int64(0)
	for _, path := range []string{d.file.path, d.file.path + "-wal"} {
		info, err := os.Stat(path)
		if err != nil {
			return 0, fmt.Errorf("%w: size of the database: %w", sqlstore.ErrUnavailable, err)
		}
		size += info.Size()
	}
	return size, nil
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
