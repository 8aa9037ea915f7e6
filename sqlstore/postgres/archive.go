package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// Archive implements sqlstore.Archiver. It takes no lock, because a row of changes is
// never updated.
func (d *Driver) Archive(ctx context.Context, after, upTo int64, keep func(sqlstore.GroupResource) bool) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, d.reads, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, configureCompact, milliseconds(d.options.LockTimeout)); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, selectResources, after, upTo)
		if err != nil {
			return err
		}
		resources, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sqlstore.GroupResource])
		if err != nil {
			return err
		}
		var b pgx.Batch
		for _, r := range resources {
			if keep(r) {
				b.Queue(insertArchive, after, upTo, r.Group, r.Resource)
			}
		}
		if b.Len() == 0 {
			return nil
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	return d.translate(err)
}

// NextArchived implements sqlstore.Archiver.
func (d *Driver) NextArchived(ctx context.Context, after sqlstore.GroupResource) (next sqlstore.GroupResource, ok bool, err error) {
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ position) error {
		err := conn.QueryRow(ctx, selectNextArchived, after.Group, after.Resource).Scan(&next.Group, &next.Resource)
		ok = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return next, ok, err
}

// DeleteArchived implements sqlstore.Archiver.
func (d *Driver) DeleteArchived(ctx context.Context, of sqlstore.GroupResource, t time.Time, limit int) (deleted int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.LockTimeout+d.options.CommitTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, d.reads, func(tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(configureCompact, milliseconds(d.options.LockTimeout))
		b.Queue(deleteArchived, of.Group, of.Resource, formatTime(t), limit).Exec(func(tag pgconn.CommandTag) error {
			deleted = int(tag.RowsAffected())
			return nil
		})
		return tx.SendBatch(ctx, &b).Close()
	})
	return deleted, d.translate(err)
}
