package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// changesQueries are the queries of Changes: of all, of a resource, and in namespaces.
type changesQueries struct{ all, of, in string }

var (
	changesAfter  = changesQueries{selectChanges, selectChangesOf, selectChangesIn}
	changesBefore = changesQueries{selectChangesBefore, selectChangesOfBefore, selectChangesIn} // the newest first
)

// State implements sqlstore.Driver.
func (d *Driver) State(ctx context.Context) (sqlstore.State, error) {
	var o observation
	err := d.readFrom(ctx, d.server.feedPool(),
		func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, before lastSeen) error {
			if err := conn.QueryRow(ctx, selectState, before.revision).Scan(o.columns()...); err != nil {
				return err
			}
			return d.check(before, &o)
		})
	if err != nil {
		return sqlstore.State{}, err
	}
	return o.State, nil
}

// Get implements sqlstore.Driver.
func (d *Driver) Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	if !key.Storable() {
		state, err := d.State(ctx)
		if err == nil {
			err = sqlstore.ErrNotFound
		}
		return sqlstore.Record{}, state.Revision, err
	}
	var record sqlstore.Record
	var o observation
	err := d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, before lastSeen) (err error) {
		if record, o, err = readRecord(conn.QueryRow(ctx, selectObject, objectArguments(before.revision, key)...),
			key); err != nil {
			return err
		}
		return d.check(before, &o)
	})
	switch {
	case err != nil:
		return sqlstore.Record{}, 0, err
	case record.Revision == 0:
		err = sqlstore.ErrNotFound
	}
	return record, o.Revision, err
}

// objectArguments returns the arguments of selectObject.
func objectArguments(known int64, key sqlstore.Key) []any {
	return []any{known, key.Group, key.Resource, key.Owner.String(), key.Namespace, key.Name}
}

// readRecord returns the result of selectObject; a zero record if there is none.
func readRecord(row pgx.Row, key sqlstore.Key) (r sqlstore.Record, o observation, err error) {
	var (
		uid, encoding, value *string
		created, revision    *int64
		expires              *time.Time
	)
	err = row.Scan(append(o.columns(), &uid, &created, &revision, &encoding, &expires, &value)...)
	if err != nil || revision == nil {
		return r, o, err
	}
	return sqlstore.Record{
		Key: key, UID: *uid, Created: *created, Revision: *revision,
		Encoding: *encoding, Expires: expiry(expires), Value: sqlstore.Bytes(*value),
	}, o, nil
}

func expiry(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// Expired implements sqlstore.Driver.
func (d *Driver) Expired(ctx context.Context, after, now time.Time, limit int) (expired []sqlstore.Record, err error) {
	err = d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ lastSeen) (err error) {
		rows, _ := conn.Query(ctx, selectExpired, formatTime(after), formatTime(now), limit) // AppendRows returns the error
		expired, err = pgx.AppendRows(expired, rows, func(row pgx.CollectableRow) (r sqlstore.Record, err error) {
			var expires *time.Time
			err = row.Scan(&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &r.UID, &r.Created, &r.Revision, &expires)
			r.Expires = expiry(expires)
			return r, err
		})
		return err
	})
	return expired, err
}

// Changes implements sqlstore.Driver.
func (d *Driver) Changes(ctx context.Context, q sqlstore.ChangesQuery) (changes []sqlstore.Change, err error) {
	size := q.Size
	if size <= 0 || q.KeysOnly {
		size = math.MaxInt
	}
	queries := changesAfter
	if q.Before != 0 {
		queries = changesBefore
	}
	query, arguments, pool := queries.all, []any{q.After, q.Limit, size}, d.server.feedPool()
	switch {
	case q.Namespaces != nil:
		namespaces, names, nonEmpty := q.Start()
		if !nonEmpty {
			return nil, nil
		}
		var of sqlstore.Resource
		if q.Of != nil {
			of = *q.Of
		}
		query, pool = queries.in, d.server.reads
		arguments = append(arguments, of.Group, of.Resource, of.Owner.String(), namespaces[0], namespaces[1], names[0],
			names[1])
	case q.Of != nil:
		query, pool = queries.of, d.server.reads
		if q.KeysOnly && q.Before == 0 { // others who ask for keys read one change, and its values are dropped
			query, arguments = selectChangeKeysOf, arguments[:2]
		}
		arguments = append(arguments, q.Of.Group, q.Of.Resource, q.Of.Owner.String())
	}
	if q.Before != 0 || query == selectChangesIn {
		arguments = append(arguments, q.Before)
	}
	err = d.snapshot(ctx, pool, q.Of, selectCompacted, func(b *pgx.Batch, state *sqlstore.State, w *watchdog) {
		b.Queue(query, arguments...).Query(func(rows pgx.Rows) (err error) {
			if !q.Kept && q.After < state.Compacted {
				return sqlstore.ErrCompacted
			}
			changes, err = pgx.AppendRows(changes, rows, func(row pgx.CollectableRow) (sqlstore.Change, error) {
				w.expect()
				return scanChange(row, q.KeysOnly)
			})
			return err
		})
	})
	return changes, err
}

// scanChange reads a row of the view change_states, or the beginning of one.
func scanChange(row pgx.CollectableRow, keysOnly bool) (c sqlstore.Change, err error) {
	var (
		op, uid                       string
		replaces, created             int64
		encoding, value               *string
		newUID, newEncoding, newValue *string
		expires, newExpires           *time.Time
	)
	k := &c.New.Key
	columns := []any{
		&c.Revision, &c.Time, &op, &c.Author.Verb, &c.Author.Subresource, &c.Author.Manager,
		&c.Author.User, &c.Author.RealUser, &c.Author.AuditID,
		&k.Group, &k.Resource, &k.Owner, &k.Namespace, &k.Name, &uid, &replaces, &created,
	}
	if !keysOnly {
		columns = append(columns, &encoding, &expires, &value, &newUID, &newEncoding, &newExpires, &newValue)
	}
	columns = append(columns, make([]any, len(row.FieldDescriptions())-len(columns))...) // Scan skips these columns
	if err := row.Scan(columns...); err != nil {
		return c, err
	}
	c.Op, c.Time = sqlstore.Op(op), c.Time.UTC()
	c.New.Revision, c.New.Created, c.New.UID = c.Revision, created, uid
	if keysOnly {
		if c.Op != sqlstore.Create {
			c.Old = &sqlstore.Record{Key: *k, UID: uid, Created: created, Revision: replaces}
		}
		return c, nil
	}
	if c.Op != sqlstore.Delete {
		if newValue == nil {
			return c, fmt.Errorf("%w: revision %d of %v is missing its value", sqlstore.ErrDamaged, c.Revision, *k)
		}
		c.New.UID, c.New.Encoding = *newUID, *newEncoding
		c.New.Expires, c.New.Value = expiry(newExpires), sqlstore.Bytes(*newValue)
	}
	if c.Op != sqlstore.Create {
		c.Old = &sqlstore.Record{
			Key: *k, UID: uid, Created: created, Revision: replaces,
			Encoding: *encoding, Expires: expiry(expires), Value: sqlstore.Bytes(*value),
		}
		c.OldBytes = int64(len(c.Old.Value))
	}
	return c, nil
}

// snapshot sends a read-only transaction on a connection of a pool, as one pipeline: the statement that selects the
// state, and the statements that queue adds, each with the function that reads its result. These functions are called
// after the state was checked, and so may use it. If of is not nil, its Compacted is what the query end selects of the
// resource: selectCompacted or selectCompleteAfter.
func (d *Driver) snapshot(
	ctx context.Context, pool *pgxpool.Pool, of *sqlstore.Resource, end string,
	queue func(*pgx.Batch, *sqlstore.State, *watchdog),
) error {
	return d.readFrom(ctx, pool, func(ctx context.Context, conn *pgxpool.Conn, w *watchdog, before lastSeen) error {
		var b pgx.Batch
		var o observation
		b.Queue(beginRead)
		if !d.server.hasSession() {
			b.Queue(unlimited)
		}
		b.Queue(selectState, before.revision).QueryRow(func(row pgx.Row) error {
			if err := row.Scan(o.columns()...); err != nil {
				return err
			}
			return d.check(before, &o)
		})
		if of != nil {
			b.Queue(end, of.Group, of.Resource, of.Owner.String()).QueryRow(func(row pgx.Row) error {
				return row.Scan(&o.Compacted)
			})
		}
		queue(&b, &o.State, w)
		b.Queue(commit)
		return conn.SendBatch(ctx, &b).Close() // if it fails, Release closes the connection
	})
}

// List implements sqlstore.Driver.
func (d *Driver) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (listed sqlstore.ListResult, err error) {
	start, nonEmpty, err := q.Start()
	if err != nil {
		return sqlstore.ListResult{}, err
	}
	var limit *int64
	if q.Limit > 0 {
		n := int64(q.Limit) + 1 // one more shows whether there are more
		limit = &n
	}
	arguments := []any{q.Group, q.Resource, q.Owner.String(), start.Namespace, start.Name, q.Name, q.At, limit,
		!q.KeysOnly}
	if q.At != 0 {
		arguments = append(arguments, !q.Replaced)
	}
	list, count := statements(q, d.lineage.last().revision-q.At <= fewChanges)
	var of *sqlstore.Resource
	if resource := q.Of(); q.At != 0 && resource.Storable() {
		of = &resource
	}
	end := selectCompacted
	if q.Past {
		end = selectCompleteAfter
	}
	var state *sqlstore.State
	check := func() error {
		switch {
		case q.At > state.Revision:
			return sqlstore.ErrFuture
		case q.At != 0 && q.At < state.Compacted:
			return sqlstore.ErrCompacted
		}
		listed.Revision = cmp.Or(q.At, state.Revision)
		return nil
	}
	err = d.snapshot(ctx, d.server.reads, of, end, func(b *pgx.Batch, s *sqlstore.State, w *watchdog) {
		if state = s; !nonEmpty {
			return
		}
		yielded := int64(0)
		b.Queue(list, arguments...).Query(func(rows pgx.Rows) (err error) {
			if err = check(); err == nil {
				yielded, listed.More, err = readList(rows, w, q, yield)
			}
			return err
		})
		if q.Limit > 0 && q.Count {
			b.Queue(count, arguments[:7]...).QueryRow(func(row pgx.Row) error {
				err := row.Scan(&listed.Remaining)
				listed.Remaining -= yielded
				return err
			})
		}
	})
	if err == nil && !nonEmpty {
		err = check()
	}
	if err != nil {
		var y *yieldError
		if errors.As(err, &y) {
			err = y.err
		}
		return sqlstore.ListResult{}, err
	}
	return listed, nil
}

// readList yields up to q.Limit records. more is true if there are more.
func readList(
	rows pgx.Rows, w *watchdog, q sqlstore.Query, yield func(sqlstore.Record) error,
) (yielded int64, more bool, err error) {
	for ; rows.Next(); yielded++ {
		if q.Limit > 0 && yielded == int64(q.Limit) {
			return yielded, true, nil
		}
		r := sqlstore.Record{Key: sqlstore.Key{Group: q.Group, Resource: q.Resource, Owner: q.Owner}}
		var expires *time.Time
		var value *string
		if err := rows.Scan(&r.Namespace, &r.Name, &r.UID, &r.Created, &r.Revision, &r.Encoding, &expires,
			&value); err != nil {
			return yielded, false, err
		}
		r.Expires = expiry(expires)
		if value != nil {
			r.Value = sqlstore.Bytes(*value)
		}
		w.pause() // the time that yield takes does not count
		err := yield(r)
		w.expect()
		if err != nil {
			return yielded, false, &yieldError{err}
		}
	}
	return yielded, false, nil
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
