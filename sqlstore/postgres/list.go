package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"byre/sqlstore"
)

// List implements sqlstore.Driver. If it fails after a call of yield, it returns the revision too.
func (d *Driver) List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (listed sqlstore.ListResult, err error) {
	start, nonEmpty, err := q.Start()
	if err != nil {
		return sqlstore.ListResult{}, err
	}
	var limit *int64
	if q.Limit > 0 {
		n := int64(q.Limit) + 1 // one more shows whether there are more
		limit = &n
	}
	arguments := []any{q.Group, q.Resource, q.Owner.String(), start.Namespace, start.Name, q.Name, q.At, limit, !q.KeysOnly}
	if q.At != 0 {
		arguments = append(arguments, !q.Replaced)
	}
	list, count := statements(q, d.lineage.last().revision-q.At <= fewChanges)
	var of *sqlstore.Resource
	if resource := q.Of(); q.At != 0 && resource.Storable() {
		of = &resource
	}
	err = d.snapshot(ctx, d.server.reads, of,
		func(b *pgx.Batch) {
			if !nonEmpty {
				return
			}
			b.Queue(list, arguments...)
			if q.Limit > 0 && q.Count {
				b.Queue(count, arguments[:7]...)
			}
		},
		func(results pgx.BatchResults, state sqlstore.State, w *watchdog) error {
			switch {
			case q.At > state.Revision:
				return sqlstore.ErrFuture
			case q.At != 0 && q.At < state.Compacted:
				return sqlstore.ErrCompacted
			}
			listed.Revision = cmp.Or(q.At, state.Revision)
			if !nonEmpty {
				return nil
			}
			return readList(results, w, q, &listed, yield)
		})
	if err != nil {
		var y *yieldError
		if errors.As(err, &y) {
			err = y.err
		}
	}
	return listed, err
}

func readList(results pgx.BatchResults, w *watchdog, q sqlstore.Query, listed *sqlstore.ListResult, yield func(sqlstore.Record) error) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	yielded := int64(0)
	for ; rows.Next(); yielded++ {
		if q.Limit > 0 && yielded == int64(q.Limit) {
			listed.More = true
			break
		}
		w.pause() // the time that yield takes does not count
		r := sqlstore.Record{Key: sqlstore.Key{Group: q.Group, Resource: q.Resource, Owner: q.Owner}}
		var expires *time.Time
		var value *string
		if err := rows.Scan(&r.Namespace, &r.Name, &r.UID, &r.Created, &r.Revision, &r.Encoding, &expires, &value); err != nil {
			return err
		}
		r.Expires = expiry(expires)
		if value != nil {
			r.Value = sqlstore.Bytes(*value)
		}
		if err := yield(r); err != nil {
			return &yieldError{err}
		}
		w.expect()
	}
	rows.Close()
	if err := rows.Err(); err != nil || q.Limit <= 0 || !q.Count {
		return err
	}
	var all int64
	if err := results.QueryRow().Scan(&all); err != nil {
		return err
	}
	listed.Remaining = all - yielded
	return nil
}

// fewChanges is how many changes after a revision a page of a list at it may examine. It takes
// some ten milliseconds.
const fewChanges = 10_000

// statements returns the statement that lists, and the one that counts the records. If q.At
// is the last revision, the statements for the current state would also do, but which
// revision is the last is known only in the transaction. isRecent says that few changes were
// made after q.At.
func statements(q sqlstore.Query, isRecent bool) (list, count string) {
	now := q.At == 0
	switch {
	case q.Namespace == "" && now:
		return listResource, countResource
	case q.Namespace == "" && isRecent:
		return listResourceSince, countResourceAt
	case q.Namespace == "":
		return listResourceAt, countResourceAt
	case q.Name != "" && now:
		return listObject, countNamespace
	case q.Name != "":
		return listObjectAt, countNamespaceAt
	case now:
		return listNamespace, countNamespace
	case isRecent:
		return listNamespaceSince, countNamespaceAt
	default:
		return listNamespaceAt, countNamespaceAt
	}
}
