package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"byre/sqlstore"
)

// reader is a pool of connections that only read.
type reader struct {
	db    *sql.DB
	stmts statements
	seen  *counters
}

// changesQueries are the queries of Changes: of all, of a resource, and in namespaces.
type changesQueries struct{ all, of, in string }

var (
	changesAfter  = changesQueries{selectChanges, selectChangesOf, selectChangesIn}
	changesBefore = changesQueries{selectChangesBefore, selectChangesOfBefore, selectChangesInBefore} // the newest first
)

// newReader makes a reader on db, which it closes with the reader, or when it fails. The reader
// raises seen to the revisions of its snapshots.
func newReader(ctx context.Context, db *sql.DB, seen *counters) (_ *reader, err error) {
	r := &reader{db: db, seen: seen}
	r.stmts, err = prepare(ctx, db, selectState, selectCompacted, selectObject, selectExpired,
		selectChanges, selectChangesOf, selectChangesIn, selectChangesBefore, selectChangesOfBefore, selectChangesInBefore,
		listNow, listAt, listSince, hasManySince, countNow, countAt)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return r, nil
}

// txStatement is a statement in a transaction, which closes it.
type txStatement interface {
	QueryContext(ctx context.Context, arguments ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, arguments ...any) *sql.Row
}

func (r *reader) in(ctx context.Context, tx *sql.Tx, query string) txStatement {
	return tx.StmtContext(ctx, r.stmts[query])
}

func (r *reader) close() error { return errors.Join(r.stmts.close(), r.db.Close()) }

func (r *reader) state(ctx context.Context) (s sqlstore.State, err error) {
	err = r.stmts[selectState].QueryRowContext(ctx).Scan(&s.Revision, &s.Compacted, &s.Epoch)
	return s, err
}

// State implements sqlstore.Driver. It does not read the database, because this process makes every
// change. This process's clock is the database's clock.
func (d *Driver) State(context.Context) (sqlstore.State, error) {
	state := *d.committer.state.Load()
	state.Time = d.options.Clock()
	return state, d.options.fence(sqlstore.ErrUnavailable)
}

// Get implements sqlstore.Driver.
func (d *Driver) Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	return d.committer.get(ctx, key)
}

func (r *reader) get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	record, snapshot, err := scanRecord(r.stmts[selectObject].QueryRowContext(ctx, key.Group, key.Resource, key.Owner.String(), key.Namespace, key.Name), key)
	r.seen.observe(snapshot)
	return record, snapshot, err
}

// scanRecord returns the result of selectObject, as Driver.Get does; the revision is 0 if it fails.
func scanRecord(row *sql.Row, key sqlstore.Key) (sqlstore.Record, int64, error) {
	var snapshot int64
	var created, revision sql.NullInt64
	var s stored
	if err := row.Scan(&snapshot, &s.uid, &created, &revision, &s.form, &s.expires, &s.value, &s.sum); err != nil {
		return sqlstore.Record{}, 0, err
	}
	if !revision.Valid {
		return sqlstore.Record{}, snapshot, sqlstore.ErrNotFound
	}
	record, err := s.record("current_objects", revision.Int64, key, created.Int64, revision.Int64)
	if err != nil {
		return sqlstore.Record{}, 0, err
	}
	return record, snapshot, nil
}

// stored has the columns of a record that come after its key and revisions.
type stored struct {
	uid, form, expires, value sql.NullString
	sum                       sql.NullInt64
}

// record returns the record. If the row of the table, which has the revision row, does not have its checksum,
// it fails with a *damagedError. A query that selects no values selects no checksums either.
func (s *stored) record(table string, row int64, key sqlstore.Key, created, revision int64) (r sqlstore.Record, err error) {
	if err := compare(s.sum, func() int64 {
		return recordSum(key, s.uid.String, created, revision, s.form.String, s.expires.String, s.value.String)
	}, table, row, key); err != nil {
		return r, err
	}
	r = sqlstore.Record{Key: key, UID: s.uid.String, Created: created, Revision: revision, Encoding: s.form.String}
	if s.value.Valid {
		r.Value = sqlstore.Bytes(s.value.String)
	}
	r.Expires, err = parseExpiry(s.expires)
	return r, err
}

// Expired implements sqlstore.Driver.
func (d *Driver) Expired(ctx context.Context, now time.Time, limit int) ([]sqlstore.Record, error) {
	c := &d.committer
	if c.buffer.holdsExpired(now) {
		if err := c.flushAll(); err != nil {
			return nil, err
		}
	}
	expired, err := d.readers.expired(ctx, now, limit)
	if err == nil && slices.ContainsFunc(expired, c.buffer.hasChanged) {
		if err := c.flushAll(); err != nil {
			return nil, err
		}
		expired, err = d.readers.expired(ctx, now, limit)
	}
	return expired, d.file.translate(err)
}

func (r *reader) expired(ctx context.Context, now time.Time, limit int) ([]sqlstore.Record, error) {
	return collect(scanExpired)(r.stmts[selectExpired].QueryContext(ctx, formatTime(now), limit)) //nolint:rowserrcheck // collect checks it
}

func scanExpired(rows *sql.Rows) (r sqlstore.Record, err error) {
	var expires sql.NullString
	if err := rows.Scan(&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &r.UID, &r.Created, &r.Revision, &expires); err != nil {
		return r, err
	}
	r.Expires, err = parseExpiry(expires)
	return r, err
}

// Changes implements sqlstore.Driver.
func (d *Driver) Changes(ctx context.Context, q sqlstore.ChangesQuery) (changes []sqlstore.Change, err error) {
	if q.Before == 0 && !q.KeysOnly {
		if changes, known := d.committer.buffer.after(q); known {
			return changes, nil
		}
	}
	// Revisions are dense only without gaps, and where every change is selected.
	last := q.After + int64(q.Limit)
	switch {
	case q.Of != nil:
		last = 0
	case q.Kept || q.Namespaces != nil || q.Before != 0:
		last = math.MaxInt64
	}
	if _, err := d.committer.flushUnlessCovered(last, q.Of); err != nil {
		return nil, err
	}
	queries := changesAfter
	if q.Before != 0 {
		queries = changesBefore
	}
	query, arguments := queries.all, []any{q.After, q.Limit, q.Before, !q.KeysOnly}
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
		query = queries.in
		arguments = append(arguments, of.Group, of.Resource, of.Owner.String(), namespaces[0], namespaces[1], names[0], names[1])
	case q.Of != nil:
		query, arguments = queries.of, append(arguments, q.Of.Group, q.Of.Resource, q.Of.Owner.String())
	}
	size := q.Size
	err = d.readers.snapshot(ctx, q.Of, func(tx *sql.Tx, state sqlstore.State) error {
		if !q.Kept && q.After < state.Compacted {
			return sqlstore.ErrCompacted
		}
		rows, err := d.readers.in(ctx, tx, query).QueryContext(ctx, arguments...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			c, err := scanChange(rows, q.KeysOnly)
			if err != nil {
				return err
			}
			changes = append(changes, c)
			// Stopping here saves reading the values beyond size from the file.
			if size > 0 {
				if size -= c.Size(); size <= 0 {
					return nil
				}
			}
		}
		return rows.Err()
	})
	return changes, d.file.translate(err)
}

func scanChange(rows *sql.Rows, keysOnly bool) (c sqlstore.Change, err error) {
	var (
		stamp, op         string
		replaces, created int64
		before, after     stored
		changed           sql.NullInt64
	)
	k := &c.New.Key
	if err := rows.Scan(&c.Revision, &stamp, &op, &c.Author.Verb, &c.Author.Subresource, &c.Author.Manager, &c.Author.User, &c.Author.RealUser, &c.Author.AuditID,
		&k.Group, &k.Resource, &k.Owner, &k.Namespace, &k.Name, &before.uid, &replaces, &created, &before.form, &before.expires, &before.value, &before.sum, &changed,
		&after.uid, &after.form, &after.expires, &after.value, &after.sum); err != nil {
		return c, err
	}
	if err := compare(changed, func() int64 {
		return changeSum(*k, c.Revision, stamp, sqlstore.Op(op), c.Author, replaces)
	}, "undo_log", c.Revision, *k); err != nil {
		return c, err
	}
	if c.Time, err = parseTime(stamp); err != nil {
		return c, err
	}
	c.Op = sqlstore.Op(op)
	c.New.Revision, c.New.Created, c.New.UID = c.Revision, created, before.uid.String
	if keysOnly {
		if c.Op != sqlstore.Create {
			c.Old = &sqlstore.Record{Key: *k, UID: before.uid.String, Created: created, Revision: replaces}
		}
		return c, nil
	}
	if c.Op != sqlstore.Delete {
		if !after.value.Valid {
			return c, fmt.Errorf("revision %d of %v %w", c.Revision, *k, errMissing)
		}
		if c.New, err = after.record("current_objects or undo_log", c.Revision, *k, created, c.Revision); err != nil {
			return c, err
		}
	}
	if c.Op != sqlstore.Create {
		old, err := before.record("undo_log", c.Revision, *k, created, replaces)
		if err != nil {
			return c, err
		}
		c.Old, c.OldBytes = &old, int64(len(old.Value))
	}
	return c, nil
}

// snapshot runs f in a read transaction, with the state in its snapshot. If of is not nil, the
// Compacted of the state is that of the resource.
func (r *reader) snapshot(ctx context.Context, of *sqlstore.Resource, f func(*sql.Tx, sqlstore.State) error) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	// The transaction has written nothing; the rollback only ends it.
	defer func() { _ = tx.Rollback() }()
	var s sqlstore.State
	if err := r.in(ctx, tx, selectState).QueryRowContext(ctx).Scan(&s.Revision, &s.Compacted, &s.Epoch); err != nil {
		return err
	}
	r.seen.observe(s.Revision)
	if of != nil {
		if err := r.in(ctx, tx, selectCompacted).QueryRowContext(ctx, of.Group, of.Resource, of.Owner.String()).Scan(&s.Compacted); err != nil {
			return err
		}
	}
	return f(tx, s)
}

// each yields what scan makes of each row of a query, and an error last. It closes the rows.
func each[T any](scan func(*sql.Rows) (T, error)) func(*sql.Rows, error) iter.Seq2[T, error] {
	return func(rows *sql.Rows, err error) iter.Seq2[T, error] {
		return func(yield func(T, error) bool) {
			var none T
			if err != nil {
				yield(none, err)
				return
			}
			defer rows.Close()
			for rows.Next() {
				if row, err := scan(rows); !yield(row, err) || err != nil {
					return
				}
			}
			if err := rows.Err(); err != nil {
				yield(none, err)
			}
		}
	}
}

// collect returns what each yields.
func collect[T any](scan func(*sql.Rows) (T, error)) func(*sql.Rows, error) ([]T, error) {
	return func(rows *sql.Rows, err error) (all []T, _ error) {
		for row, err := range each(scan)(rows, err) {
			if err != nil {
				return nil, err
			}
			all = append(all, row)
		}
		return all, nil
	}
}

// counters are the counters of the store; their Time is not set.
//
// Invariant: the revision is at least that of every commit and every read that has returned.
// Commit stores it before it returns, and a read raises it to the revision of its snapshot
// (observe). Otherwise a linearizable read could miss a change that an earlier read has shown.
type counters struct{ atomic.Pointer[sqlstore.State] }

// observe raises the revision to one that a read has seen. A snapshot may show a commit before
// Commit has stored its state. Without observe, a linearizable read that begins after the
// first read has returned could miss that commit.
func (c *counters) observe(revision int64) {
	for {
		last := c.Load()
		if revision <= last.Revision {
			return
		}
		state := *last
		state.Revision = revision
		if c.CompareAndSwap(last, &state) {
			return
		}
	}
}
