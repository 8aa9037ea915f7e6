package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"

	"byre/sqlstore"
)

// ReadDamaged is ReadSnapshot of a file that may be damaged. The sequences yield a
// *sqlstore.DamagedRow for what can't be read or does not have its checksum, and go on after it.
// Objects are in the order of the revisions that created them. Their number is not known.
func ReadDamaged(ctx context.Context, path string, read func(sqlstore.Snapshot) error) error {
	return readTransaction(ctx, path, func(_ *file, tx *sql.Tx) error {
		s := sqlstore.Snapshot{Header: sqlstore.Header{Time: snapshotTime(), ObjectCount: -1}}
		err := tx.QueryRowContext(ctx, selectState).Scan(&s.Revision, &s.Compacted, &s.Epoch)
		if err != nil { // the end of undo_log
			err = tx.QueryRowContext(ctx, selectStateByIndex).Scan(&s.Revision, &s.Compacted, &s.Epoch)
		}
		if err != nil {
			return err
		}
		histories, err := collect(scanHistory)(tx.QueryContext(ctx, selectHistories)) //nolint:rowserrcheck // collect checks it
		if err == nil {                                                               // otherwise all history counts as compacted as far as the store
			s.SetRetained(histories)
		}
		objects := damagedTable[sqlstore.ObjectRow]{
			name: "current_objects", between: selectObjectsBetween, keys: selectObjectKeys,
			scan: scanObjectRow, rowid: func(r *sqlstore.ObjectRow) int64 { return r.Created },
		}
		changes := damagedTable[sqlstore.ChangeRow]{
			name: "undo_log", between: selectUndoBetween, keys: selectUndoKeys, isHistory: true,
			scan: scanChangeRow, rowid: func(r *sqlstore.ChangeRow) int64 { return r.Revision },
		}
		s.Objects, s.Changes = objects.rows(ctx, tx, s.Revision), changes.rows(ctx, tx, s.Revision)
		return read(s)
	})
}

// damagedTable reads a table by its rowid, for which no index is needed. After a row that can't be
// read it looks the next ones up one by one, until one of them can.
type damagedTable[T any] struct {
	name string
	// between selects the rows from one rowid to another. keys selects their keys and rowids,
	// from an index alone.
	between, keys string
	// isHistory says that a rowid is the revision of a change.
	isHistory bool
	scan      func(*sql.Rows) (*T, error)
	rowid     func(*T) int64
}

// rows yields the rows up to a rowid.
func (d *damagedTable[T]) rows(ctx context.Context, tx *sql.Tx, last int64) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for next := int64(1); next <= last; {
			var failed error
			for row, err := range rowsOf(ctx, tx, d.between, d.scan, next, math.MaxInt64) {
				if failed = err; err != nil {
					break
				}
				next = d.rowid(row) + 1
				if !yield(row, nil) {
					return
				}
			}
			if failed == nil {
				return
			}
			var damaged []*sqlstore.DamagedRow
			var sum *damagedError
			var err error
			if errors.As(failed, &sum) {
				damaged = append(damaged, d.damaged(fmt.Sprintf("revision %d, %s", sum.revision, sum.key.Display()), "the row does not have its checksum", sum.key, sum.rowid))
				next = max(next, sum.rowid) + 1 // the rowid may be damaged too
			} else {
				damaged, err = d.skip(ctx, tx, &next, last)
			}
			for _, row := range damaged {
				if !yield(nil, row) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// skip moves next to the next rowid whose row can be read, or behind last, and returns what can't
// be read before it.
func (d *damagedTable[T]) skip(ctx context.Context, tx *sql.Tx, next *int64, last int64) (damaged []*sqlstore.DamagedRow, err error) {
	var from, to int64 // the rows that the engine can't read
	var reason error
	for ; *next <= last; *next++ {
		found, err := d.lookUp(ctx, tx, *next)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if found {
			break
		}
		if err != nil {
			if from == 0 {
				from, reason = *next, err
			}
			to = *next
		}
	}
	if from == 0 {
		return nil, nil
	}
	if damaged = d.named(ctx, tx, from, to, reason); len(damaged) > 0 {
		return damaged, nil
	}
	unnamed := d.damaged(fmt.Sprintf("from revision %d to %d", from, to), fmt.Sprintf("%v; nor can the index that names the rows", reason), sqlstore.Key{}, to)
	return []*sqlstore.DamagedRow{unnamed}, nil
}

// lookUp reports whether the engine can read a row, whatever its checksum.
func (d *damagedTable[T]) lookUp(ctx context.Context, tx *sql.Tx, rowid int64) (found bool, err error) {
	for _, rowErr := range rowsOf(ctx, tx, d.between, d.scan, rowid, rowid) { // one at most
		var sum *damagedError
		if found = rowErr == nil || errors.As(rowErr, &sum); !found {
			err = rowErr
		}
	}
	return found, err
}

// named returns the rows from one rowid to another as the index names them; none if it can't be
// read.
func (d *damagedTable[T]) named(ctx context.Context, tx *sql.Tx, from, to int64, reason error) []*sqlstore.DamagedRow {
	all, err := collect(func(rows *sql.Rows) (*sqlstore.DamagedRow, error) {
		var k sqlstore.Key
		var rowid int64
		err := rows.Scan(&k.Group, &k.Resource, &k.Owner, &k.Namespace, &k.Name, &rowid)
		row := k.Display()
		if d.isHistory {
			row = fmt.Sprintf("revision %d, %s", rowid, row)
		}
		return d.damaged(row, "the row can't be read: "+reason.Error(), k, rowid), err
	})(tx.QueryContext(ctx, d.keys, from, to)) //nolint:rowserrcheck // collect checks it
	if err != nil {
		return nil
	}
	return all
}

func (d *damagedTable[T]) damaged(row, reason string, key sqlstore.Key, rowid int64) *sqlstore.DamagedRow {
	damaged := &sqlstore.DamagedRow{Finding: sqlstore.Finding{Row: d.name + ": " + row, Reason: reason}, Key: key}
	if d.isHistory {
		damaged.Revision = rowid
	}
	return damaged
}
