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
		queries := &listNow
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
			listed.Revision = q.At
			if queries, err = r.queriesAt(ctx, tx, q, state.Revision); err != nil {
				return err
			}
		}
		start, nonEmpty, err := q.Start()
		if err != nil || !nonEmpty {
			return err
		}
		a := arguments{q.Group, q.Resource, q.Owner.String(), start.Namespace, start.Name, q.Name, listed.Revision, q.Replaced}
		last, more, err := list(ctx, r.in(ctx, tx, queries.list(q)), a, q, yield)
		if err != nil || !more {
			return err
		}
		listed.More = true
		if !q.Count {
			return nil
		}
		a.namespace, a.name = last.Namespace, last.Name
		count := queries.countResource
		if q.Namespace != "" {
			count, a.namespace = queries.countNamespace, q.Namespace
		}
		return r.in(ctx, tx, count).QueryRowContext(ctx, a.withLimit(0, false)...).Scan(&listed.Remaining)
	})
	if err != nil {
		return sqlstore.ListResult{}, d.file.translate(err)
	}
	return listed, nil
}

// fewChanges is how many changes of its resource after a revision a page of a list at it may examine.
// It takes some ten milliseconds.
const fewChanges = 10_000

// listQueries are the queries of a List, by the kind of its range.
type listQueries struct{ resource, namespace, object, countResource, countNamespace string }

var (
	listNow = listQueries{listResource, listNamespace, listObject, countResource, countNamespace}
	listAt  = listQueries{listResourceAt, listNamespaceAt, listObjectAt, countResourceAt, countNamespaceAt}
	// listSince is listAt for a revision after which few changes were made.
	listSince = listQueries{listResourceSince, listNamespaceSince, listObjectAt, countResourceAt, countNamespaceAt}
)

// queriesAt returns the queries for a list at q.At, which is before the last revision.
func (r *reader) queriesAt(ctx context.Context, tx *sql.Tx, q sqlstore.Query, last int64) (*listQueries, error) {
	isMany := false
	if last-q.At > fewChanges { // other resources may have most of these changes
		row := r.in(ctx, tx, hasManySince).QueryRowContext(ctx, q.Group, q.Resource, q.Owner.String(), q.At, fewChanges)
		if err := row.Scan(&isMany); err != nil {
			return nil, err
		}
	}
	if isMany {
		return &listAt, nil
	}
	return &listSince, nil
}

// list returns the query that lists the range of a query.
func (s *listQueries) list(q sqlstore.Query) string {
	switch {
	case q.Namespace == "":
		return s.resource
	case q.Name == "":
		return s.namespace
	default:
		return s.object
	}
}

// arguments are the arguments ?1 to ?7, which all statements of a List have, and what ?10 is made of.
type arguments struct {
	group, resource, owner, namespace, name, only string
	at                                            int64
	replaced                                      bool
}

// withLimit returns all arguments of a statement. A count ignores the last three, and a list of what is current the
// last one.
func (a arguments) withLimit(limit int, values bool) []any {
	return []any{a.group, a.resource, a.owner, a.namespace, a.name, a.only, a.at, limit, values, !a.replaced}
}

// list yields up to q.Limit records. last is the position of the last one; more is true if
// there are more.
func list(ctx context.Context, stmt txStatement, a arguments, q sqlstore.Query, yield func(sqlstore.Record) error) (last sqlstore.Position, more bool, err error) {
	limit := -1
	if q.Limit > 0 {
		limit = q.Limit + 1
	}
	rows, err := stmt.QueryContext(ctx, a.withLimit(limit, !q.KeysOnly)...)
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
