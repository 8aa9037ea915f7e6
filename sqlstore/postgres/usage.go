package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// Usage implements sqlstore.Driver.
func (d *Driver) Usage(ctx context.Context) (usage sqlstore.Usage, err error) {
	queue := func(b *pgx.Batch) {
		b.Queue(allowScan)
		b.Queue(selectUsage)
	}
	err = d.snapshot(ctx, d.server.reads, nil, queue, func(results pgx.BatchResults, state sqlstore.State, w *watchdog) error {
		if _, err := results.Exec(); err != nil {
			return err
		}
		// The statement scans a whole table and takes long. ctx bounds it, and no client's
		// request waits for it.
		w.pause()
		usage.Revision = state.Revision
		rows, _ := results.Query() // AppendRows returns the error
		usage.Resources, err = pgx.AppendRows(usage.Resources, rows, pgx.RowToStructByPos[sqlstore.ResourceUsage])
		return err
	})
	return usage, err
}

// sizeTimeout bounds one measurement of the database. The server looks at every file of the
// tables. On a slow disk that takes seconds, which does not mean that the server is silent.
const sizeTimeout = time.Minute

// Used implements sqlstore.Driver. PostgreSQL does not tell how much of its files can be
// reused, so all of them count.
func (d *Driver) Used(ctx context.Context) (int64, error) { return d.Size(ctx) }

// Size implements sqlstore.Driver: the tables of the schema, and their indexes.
func (d *Driver) Size(ctx context.Context) (size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sizeTimeout)
	defer cancel()
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog, _ lastSeen) error {
		w.pause() // ctx bounds it; a slow answer is no reason to drop the connections
		return conn.QueryRow(ctx, selectSize).Scan(&size)
	})
	return size, err
}
