package sqlite

import (
	"context"
	"database/sql"
	"time"

	"byre/sqlstore"
)

// Histories implements sqlstore.Driver.
func (d *Driver) Histories(ctx context.Context) ([]sqlstore.History, error) {
	if err := d.flushBefore(func(m *memory) bool { return !m.covers(d.state.Load().Revision, nil) }); err != nil {
		return nil, err
	}
	histories, err := scanHistories(d.readers.db.QueryContext(ctx, selectHistories))
	return histories, d.translate(err)
}

// scanHistories reads the rows of selectHistories, and closes them.
func scanHistories(rows *sql.Rows, err error) (histories []sqlstore.History, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var h sqlstore.History
		var seconds int64
		var first sql.NullInt64
		var stamp sql.NullString
		if err := rows.Scan(&h.Group, &h.Resource.Resource, &h.Owner, &h.Compacted, &seconds, &first, &stamp); err != nil {
			return nil, err
		}
		h.RetainedFor = time.Duration(seconds) * time.Second
		if h.First = first.Int64; first.Valid {
			if h.FirstTime, err = parseTime(stamp.String); err != nil {
				return nil, err
			}
		}
		histories = append(histories, h)
	}
	return histories, rows.Err()
}

// SetRetainedFor implements sqlstore.Driver.
func (d *Driver) SetRetainedFor(ctx context.Context, ages map[sqlstore.Resource]time.Duration) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.writer.closed {
		return sqlstore.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := d.transaction(d.state.Load(), func() error {
		for of, age := range ages {
			if _, err := d.writer.updateRetainedFor.Exec(int64(age/time.Second), of.Group, of.Resource, of.Owner.String()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return d.translate(err)
	}
	d.signalLogGrown()
	return nil
}

// CountChanges implements sqlstore.Driver.
func (d *Driver) CountChanges(ctx context.Context, of sqlstore.Resource, limit int64) (count, oldest int64, err error) {
	if err := d.flushBefore(func(m *memory) bool { return !m.covers(d.state.Load().Revision, &of) }); err != nil {
		return 0, 0, err
	}
	err = d.readers.db.QueryRowContext(ctx, countChanges, of.Group, of.Resource, of.Owner.String(), limit).Scan(&count, &oldest)
	return count, oldest, d.translate(err)
}
