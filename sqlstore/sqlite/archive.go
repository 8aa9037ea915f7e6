package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"byre/sqlstore"
)

// Archive implements sqlstore.Archiver.
func (d *Driver) Archive(ctx context.Context, after, upTo int64, keep func(sqlstore.GroupResource) bool) error {
	if err := d.flushBefore(func(m *memory) bool { return !m.covers(upTo) }); err != nil {
		return err
	}
	resources, err := d.resources(ctx, after, upTo, keep)
	if err != nil || len(resources) == 0 {
		return d.translate(err)
	}
	return d.change(ctx, func(conn *sql.Conn) error {
		for _, r := range resources {
			if _, err := conn.ExecContext(ctx, insertArchive, after, upTo, r.Group, r.Resource); err != nil {
				return err
			}
		}
		return nil
	})
}

// resources returns those resources with changes after one revision, up to another, that keep
// selects.
func (d *Driver) resources(ctx context.Context, after, upTo int64, keep func(sqlstore.GroupResource) bool) (kept []sqlstore.GroupResource, err error) {
	rows, err := d.readers.db.QueryContext(ctx, selectResources, after, upTo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r sqlstore.GroupResource
		if err := rows.Scan(&r.Group, &r.Resource); err != nil {
			return nil, err
		}
		if keep(r) {
			kept = append(kept, r)
		}
	}
	return kept, rows.Err()
}

// change runs f in a transaction of the writer's connection.
func (d *Driver) change(ctx context.Context, f func(*sql.Conn) error) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.writer.closed {
		return sqlstore.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := d.transaction(d.state.Load(), func() error { return f(d.writer.conn) })
	if err == nil {
		d.signalLogGrown()
	}
	return d.translate(err)
}

// NextArchived implements sqlstore.Archiver.
func (d *Driver) NextArchived(ctx context.Context, after sqlstore.GroupResource) (next sqlstore.GroupResource, ok bool, err error) {
	err = d.readers.db.QueryRowContext(ctx, selectNextArchived, after.Group, after.Resource).Scan(&next.Group, &next.Resource)
	if errors.Is(err, sql.ErrNoRows) {
		return next, false, nil
	}
	return next, err == nil, d.translate(err)
}

// DeleteArchived implements sqlstore.Archiver.
func (d *Driver) DeleteArchived(ctx context.Context, of sqlstore.GroupResource, t time.Time, limit int) (deleted int, err error) {
	err = d.change(ctx, func(conn *sql.Conn) error {
		result, err := conn.ExecContext(ctx, deleteArchived, of.Group, of.Resource, formatTime(t), limit)
		if err != nil {
			return err
		}
		rows, err := result.RowsAffected()
		deleted = int(rows)
		if err != nil || deleted == 0 {
			return err
		}
		excess, err := d.writer.excessPages()
		if err != nil || excess <= 0 {
			return err
		}
		return d.writer.vacuumSome(limit)
	})
	return deleted, err
}
