package sqlite

import (
	"context"
	"database/sql"
	"time"

	"byre/sqlstore"
)

// Histories implements sqlstore.Driver.
func (d *Driver) Histories(ctx context.Context) ([]sqlstore.History, error) {
	if err := d.committer.flushAll(); err != nil {
		return nil, err
	}
	histories, err := collect(scanHistory)(d.readers.db.QueryContext(ctx, selectHistories)) //nolint:rowserrcheck // collect checks it
	return histories, d.file.translate(err)
}

// scanHistory reads a row of selectHistories.
func scanHistory(rows *sql.Rows) (h sqlstore.History, err error) {
	var seconds int64
	var first sql.NullInt64
	var stamp sql.NullString
	if err := rows.Scan(&h.Group, &h.Resource.Resource, &h.Owner, &h.Compacted, &seconds, &first, &stamp); err != nil {
		return h, err
	}
	h.RetainedFor = time.Duration(seconds) * time.Second
	if h.First = first.Int64; first.Valid {
		h.FirstTime, err = parseTime(stamp.String)
	}
	return h, err
}

// Compacted implements sqlstore.Driver.
func (d *Driver) Compacted(ctx context.Context, of sqlstore.Resource) (compacted int64, err error) {
	err = d.readers.snapshot(ctx, &of, func(_ *sql.Tx, state sqlstore.State) error {
		compacted = state.Compacted
		return nil
	})
	return compacted, d.file.translate(err)
}

// RevisionAt implements sqlstore.Driver.
func (d *Driver) RevisionAt(ctx context.Context, moment time.Time) (revision int64, err error) {
	if err := d.committer.flushAll(); err != nil {
		return 0, err
	}
	err = d.readers.db.QueryRowContext(ctx, selectRevisionAt, formatTime(moment)).Scan(&revision)
	return revision, d.file.translate(err)
}

// SetRetainedFor implements sqlstore.Driver.
func (d *Driver) SetRetainedFor(ctx context.Context, ages map[sqlstore.Resource]time.Duration) error {
	return d.committer.change(ctx, func(*sqlstore.State) error {
		for of, age := range ages {
			if _, err := d.committer.writer.stmts[updateRetainedFor].Exec(int64(age/time.Second), of.Group, of.Resource, of.Owner.String()); err != nil {
				return err
			}
		}
		return nil
	})
}

// CountChanges implements sqlstore.Driver.
func (d *Driver) CountChanges(
	ctx context.Context, of sqlstore.Resource, upTo, limit int64,
) (count, oldest int64, err error) {
	if _, err := d.committer.flushUnlessCovered(0, &of); err != nil {
		return 0, 0, err
	}
	row := d.readers.db.QueryRowContext(ctx, countChanges, of.Group, of.Resource, of.Owner.String(), upTo, limit)
	err = row.Scan(&count, &oldest)
	return count, oldest, d.file.translate(err)
}
