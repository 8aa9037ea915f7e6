package sqlite

import (
	"context"
	"database/sql"

	"byre/sqlstore"
)

// Histories implements sqlstore.Driver.
func (d *Driver) Histories(ctx context.Context) ([]sqlstore.History, error) {
	if err := d.flushBefore(func(m *memory) bool { return !m.covers(d.state.Load().Revision, nil) }); err != nil {
		return nil, err
	}
	histories, err := scanHistories(d.readers.db.QueryContext(ctx, selectHistories)) //nolint:sqlclosecheck // scanHistories closes it
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
		var first sql.NullInt64
		var stamp sql.NullString
		if err := rows.Scan(&h.Group, &h.Resource.Resource, &h.Owner, &h.Compacted, &first, &stamp); err != nil {
			return nil, err
		}
		if h.First = first.Int64; first.Valid {
			if h.FirstTime, err = parseTime(stamp.String); err != nil {
				return nil, err
			}
		}
		histories = append(histories, h)
	}
	return histories, rows.Err()
}

// CountChanges implements sqlstore.Driver.
func (d *Driver) CountChanges(ctx context.Context, of sqlstore.Resource, limit int64) (count, oldest int64, err error) {
	if err := d.flushBefore(func(m *memory) bool { return !m.covers(d.state.Load().Revision, &of) }); err != nil {
		return 0, 0, err
	}
	err = d.readers.db.QueryRowContext(ctx, countChanges, of.Group, of.Resource, of.Owner.String(), limit).Scan(&count, &oldest)
	return count, oldest, d.translate(err)
}
