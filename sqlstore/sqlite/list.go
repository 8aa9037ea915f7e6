package sqlite

import (
	"context"
	"database/sql"

	"byre/sqlstore"
)

// List implements sqlstore.Driver. It calls yield inside the read transaction. yield should not
// take long, because SQLite can't start the log over until the transaction ends.
func (d *Driver) List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (listed sqlstore.ListResult, err error) {
	of := new(q.Of())
	last, err := d.committer.flushUnlessCovered(q.At, of)
	if err != nil {
		return sqlstore.ListResult{}, err
	}
	r := d.readers
	if q.At == 0 {
		of = nil
	}
	err = r.snapshot(ctx, of, func(tx *sql.Tx, state sqlstore.State) error {
		listed.Revision = state.Revision
		query, count := listNow, countNow
		switch {
		case q.At == 0:
			listed.Revision = max(last, state.Revision)
		case q.At == state.Revision && q.Replaced:
			return nil
		case q.At == state.Revision:
		case q.At > state.Revision:
			return sqlstore.ErrFuture
		case q.At < state.Compacted:
			return sqlstore.ErrCompacted
		default:
			listed.Revision, count = q.At, countAt
			if query, err = r.listQueryAt(ctx, tx, q, state.Revision); err != nil {
				return err
			}
		}
		start, nonEmpty, err := q.Start()
		if err != nil || !nonEmpty {
			return err
		}
		last, more, err := list(ctx, r.in(ctx, tx, query), q, arguments(q, start, listed.Revision), yield)
		if err != nil || !more {
			return err
		}
		listed.More = true
		if !q.Count {
			return nil
		}
		return r.in(ctx, tx, count).QueryRowContext(ctx, arguments(q, last, listed.Revision)...).Scan(&listed.Remaining)
	})
	if err != nil {
		return sqlstore.ListResult{}, d.file.translate(err)
	}
	return listed, nil
}

// fewChanges is how many changes of its resource after a revision a page of a list at it may examine.
// It takes some ten milliseconds.
const fewChanges = 10_000

// listQueryAt returns the query for a list at q.At, which is before the last revision.
func (r *reader) listQueryAt(ctx context.Context, tx *sql.Tx, q sqlstore.Query, last int64) (string, error) {
	isMany := q.Namespace != "" && q.Name != "" // the history of one object is shorter
	if !isMany && last-q.At > fewChanges {      // other resources may have most of these changes
		row := r.in(ctx, tx, hasManySince).QueryRowContext(ctx, q.Group, q.Resource, q.Owner.String(), q.At, fewChanges)
		if err := row.Scan(&isMany); err != nil {
			return "", err
		}
	}
	if isMany {
		return listAt, nil
	}
	return listSince, nil
}

// arguments returns the arguments of the statements of a list after a position. A count ignores the last three, and a
// list of what is current the last one.
func arguments(q sqlstore.Query, after sqlstore.Position, at int64) []any {
	// No name and no namespace has the character 0: nothing comes between a text and the text with a 1 at its end.
	const next = "\x01"
	first, end, endName := after.Name+next, any([]byte{0xff}), "" // a BLOB comes after every text
	switch {
	case q.Namespace == "":
	case q.Name == "":
		end = q.Namespace + next
	default:
		first, end, endName = max(first, q.Name), q.Namespace, q.Name+next
	}
	limit := -1
	if q.Limit > 0 {
		limit = q.Limit + 1
	}
	return []any{
		q.Group, q.Resource, q.Owner.String(), after.Namespace, first, end, endName, q.Name,
		at, limit, !q.KeysOnly, !q.Replaced,
	}
}

// list yields up to q.Limit records. last is the position of the last one; more is true if
// there are more.
func list(ctx context.Context, stmt txStatement, q sqlstore.Query, arguments []any, yield func(sqlstore.Record) error) (last sqlstore.Position, more bool, err error) {
	rows, err := stmt.QueryContext(ctx, arguments...)
	if err != nil {
		return last, false, err
	}
	defer rows.Close()
	for n := 0; rows.Next(); n++ {
		if n == q.Limit && q.Limit > 0 {
			return last, true, nil
		}
		key := sqlstore.Key{Group: q.Group, Resource: q.Resource, Owner: q.Owner}
		var created, revision int64
		var s stored
		if err := rows.Scan(&key.Namespace, &key.Name, &s.uid, &created, &revision, &s.form, &s.expires, &s.value, &s.sum); err != nil {
			return last, false, err
		}
		record, err := s.record("current_objects or undo_log", revision, key, created, revision)
		if err != nil {
			return last, false, err
		}
		last = sqlstore.Position{Namespace: record.Namespace, Name: record.Name}
		if err := yield(record); err != nil {
			return last, false, err
		}
	}
	return last, false, rows.Err()
}
