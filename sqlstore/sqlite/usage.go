package sqlite

import (
	"context"
	"database/sql"
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
