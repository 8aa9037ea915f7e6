package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
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
	r.stmts, err = prepare(ctx, db, selectState, selectCompacted, selectCompleteAfter, selectObject, selectExpired,
		selectChanges, selectChangesOf, selectChangesIn, selectChangesBefore, selectChangesOfBefore, selectChangesInBefore,
		selectChangeKeysOf, listNow, listAt, listSince, hasManySince, countNow, countAt)
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

// fence fails with an error of a kind, and of no other, if Fence fails.
func (o *Options) fence(kind error) error {
	if o.Fence == nil {
		return nil
	}
	if err := o.Fence(); err != nil {
		return fmt.Errorf("%w: %s", kind, err.Error())
	}
	return nil
}

// Get implements sqlstore.Driver.
func (d *Driver) Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	return d.committer.get(ctx, key)
}

func (r *reader) get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	record, snapshot, err := scanRecord(r.stmts[selectObject].QueryRowContext(ctx, key.Group, key.Resource,
		key.Owner.String(), key.Namespace, key.Name), key)
	r.seen.observe(snapshot)
	return record, snapshot, err
}

// scanRecord returns the result of selectObject, as Driver.Get does; the revision is 0 if it fails.
func scanRecord(row *sql.Row, key sqlstore.Key) (sqlstore.Record, int64, error) {
	var snapshot int64
	var created, revision sql.NullInt64
	var s stored
	if err := row.Scan(&snapshot, &s.uid, &created, &revision, &s.encoding, &s.expires, &s.value, &s.sum); err != nil {
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
	uid, encoding, expires, value sql.NullString
	sum                           sql.NullInt64
}

// record returns the record. If the row of the table, which has the revision row, does not have its checksum,
// it fails with a *damagedError. A query that selects no values selects no checksums either.
func (s *stored) record(
	table string, row int64, key sqlstore.Key, created, revision int64,
) (r sqlstore.Record, err error) {
	if err := compare(s.sum, func() int64 {
		return recordSum(key, s.uid.String, created, revision, s.encoding.String, s.expires.String, s.value.String)
	}, table, row, key); err != nil {
		return r, err
	}
	r = sqlstore.Record{Key: key, UID: s.uid.String, Created: created, Revision: revision, Encoding: s.encoding.String}
	if s.value.Valid {
		r.Value = sqlstore.Bytes(s.value.String)
	}
	r.Expires, err = parseExpiry(s.expires)
	return r, err
}

// Expired implements sqlstore.Driver.
func (d *Driver) Expired(ctx context.Context, after, now time.Time, limit int) ([]sqlstore.Record, error) {
	c := &d.committer
	if c.buffer.holdsExpired(now) {
		if err := c.flushAll(); err != nil {
			return nil, err
		}
	}
	expired, err := d.readers.expired(ctx, after, now, limit)
	if err == nil && slices.ContainsFunc(expired, c.buffer.hasChanged) {
		if err := c.flushAll(); err != nil {
			return nil, err
		}
		expired, err = d.readers.expired(ctx, after, now, limit)
	}
	return expired, d.file.translate(err)
}

func (r *reader) expired(ctx context.Context, after, now time.Time, limit int) ([]sqlstore.Record, error) {
	//nolint:rowserrcheck // collect checks it
	rows, err := r.stmts[selectExpired].QueryContext(ctx, formatTime(after), formatTime(now), limit)
	return collect(scanExpired)(rows, err)
}

func scanExpired(rows *sql.Rows) (r sqlstore.Record, err error) {
	var expires sql.NullString
	if err := rows.Scan(&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &r.UID, &r.Created, &r.Revision,
		&expires); err != nil {
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
	query, arguments := queries.all, []any{q.After, q.Limit}
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
		arguments = append(arguments, of.Group, of.Resource, of.Owner.String(), namespaces[0], namespaces[1], names[0],
			names[1])
	case q.Of != nil:
		query, arguments = queries.of, append(arguments, q.Of.Group, q.Of.Resource, q.Of.Owner.String())
		if q.KeysOnly && q.Before == 0 { // others who ask for keys read one change, and its values are dropped
			query = selectChangeKeysOf
		}
	}
	if q.Before != 0 {
		arguments = append(arguments, q.Before)
	}
	size := q.Size
	err = d.readers.snapshot(ctx, q.Of, selectCompacted, func(tx *sql.Tx, state sqlstore.State) error {
		if !q.Kept && q.After < state.Compacted {
			return sqlstore.ErrCompacted
		}
		rows, err := d.readers.in(ctx, tx, query).QueryContext(ctx, arguments...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			c, err := scanChange(rows, q.KeysOnly, query != selectChangeKeysOf)
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

// scanChange reads a row of the view change_states, or the beginning of one, which has no states.
func scanChange(rows *sql.Rows, keysOnly, hasStates bool) (c sqlstore.Change, err error) {
	var (
		stamp, op         string
		replaces, created int64
		before, after     stored
		changed           sql.NullInt64
		resourceID        int64
	)
	k := &c.New.Key
	columns := []any{
		&c.Revision, &stamp, &op, &c.Author.Verb, &c.Author.Subresource, &c.Author.Manager,
		&c.Author.User, &c.Author.RealUser, &c.Author.AuditID,
		&k.Group, &k.Resource, &k.Owner, &k.Namespace, &k.Name, &before.uid, &replaces, &created, &changed,
	}
	if hasStates {
		columns = append(columns, &before.encoding, &before.expires, &before.value, &before.sum,
			&after.uid, &after.encoding, &after.expires, &after.value, &after.sum, &resourceID)
	}
	if err := rows.Scan(columns...); err != nil {
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
// Compacted of the state is what the query end selects of the resource: selectCompacted or selectCompleteAfter.
func (r *reader) snapshot(
	ctx context.Context, of *sqlstore.Resource, end string, f func(*sql.Tx, sqlstore.State) error,
) error {
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
		if err := r.in(ctx, tx, end).QueryRowContext(ctx, of.Group, of.Resource,
			of.Owner.String()).Scan(&s.Compacted); err != nil {
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

// List implements sqlstore.Driver. It calls yield inside the read transaction. yield should not
// take long, because SQLite can't start the log over until the transaction ends.
func (d *Driver) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (listed sqlstore.ListResult, err error) {
	of := new(q.Of())
	last, err := d.committer.flushUnlessCovered(q.At, of)
	if err != nil {
		return sqlstore.ListResult{}, err
	}
	r := d.readers
	if q.At == 0 {
		of = nil
	}
	end := selectCompacted
	if q.Past {
		end = selectCompleteAfter
	}
	err = r.snapshot(ctx, of, end, func(tx *sql.Tx, state sqlstore.State) error {
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
func list(
	ctx context.Context, stmt txStatement, q sqlstore.Query, arguments []any, yield func(sqlstore.Record) error,
) (last sqlstore.Position, more bool, err error) {
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
		if err := rows.Scan(&key.Namespace, &key.Name, &s.uid, &created, &revision,
			&s.encoding, &s.expires, &s.value, &s.sum); err != nil {
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

// timeLayout has a fixed width, so that the order of the texts is that of the times. SQLite's
// date functions can read it.
const timeLayout = "2006-01-02T15:04:05.000000Z"

func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(timeLayout, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("time in the database: %w", err)
	}
	return t, nil
}

// formatExpiry returns the value of the column expires: NULL for the zero time, which means
// never.
func formatExpiry(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return formatTime(t)
}

// expiryText is formatExpiry for checksums: it returns an empty text for NULL.
func expiryText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return formatTime(t)
}

func parseExpiry(text sql.NullString) (time.Time, error) {
	if !text.Valid {
		return time.Time{}, nil
	}
	return parseTime(text.String)
}

// SQLite has no checksums of its pages, and so does not notice when a disk changes a byte
// inside a text. Each row therefore has CRC-32C checksums of its columns. Every read that
// returns a value compares them. A row whose checksums are NULL passes: who changes a row by
// hand sets them so.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBuffer is large enough for all columns but the value of nearly every row, so that summing
// them needs no allocation.
type sumBuffer [512]byte

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendKey(b []byte, k sqlstore.Key) []byte {
	for _, text := range [...]string{k.Group, k.Resource, k.Owner.String(), k.Namespace, k.Name} {
		b = appendText(b, text)
	}
	return b
}

// recordSum returns the value of the column record_sum: the checksum of a record. expires is
// the text of the column expires; empty for NULL.
func recordSum(k sqlstore.Key, uid string, created, revision int64, encoding, expires, value string) int64 {
	var buffer sumBuffer
	b := appendKey(buffer[:0], k)
	b = appendText(b, uid)
	b = binary.AppendVarint(b, created)
	b = binary.AppendVarint(b, revision)
	b = appendText(b, encoding)
	b = appendText(b, expires)
	return int64(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, sqlstore.Bytes(value)))
}

// changeSum returns the value of the column change_sum: the checksum of the columns of a change
// that are not part of the replaced record.
func changeSum(k sqlstore.Key, revision int64, stamp string, op sqlstore.Op, a sqlstore.Author, replaces int64) int64 {
	var buffer sumBuffer
	b := appendKey(buffer[:0], k)
	b = binary.AppendVarint(b, revision)
	for _, text := range [...]string{stamp, string(op), a.Verb, a.Subresource, a.Manager, a.User, a.RealUser, a.AuditID} {
		b = appendText(b, text)
	}
	return int64(crc32.Checksum(binary.AppendVarint(b, replaces), castagnoli))
}

// writtenSum returns the value of the column change_sum of the table current_objects, which has
// only some columns of the last change, and the generation.
func writtenSum(k sqlstore.Key, revision int64, stamp string, a sqlstore.Author, generation int64) int64 {
	a.AuditID = ""
	return changeSum(k, revision, stamp, "", a, generation)
}

// damagedError means that a row does not have its checksum.
type damagedError struct {
	table    string
	revision int64
	key      sqlstore.Key
	rowid    int64 // set by the scans of whole tables
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("the row of %s with revision %d (%s) does not have its checksum", e.table, e.revision,
		e.key.Display())
}

// compare returns a *damagedError if the checksum of a row differs from the stored one. A row
// without a stored checksum passes.
func compare(stored sql.NullInt64, sum func() int64, table string, revision int64, k sqlstore.Key) error {
	if !stored.Valid || stored.Int64 == sum() {
		return nil
	}
	return &damagedError{table: table, revision: revision, key: k}
}

// at returns the error of a row, with its rowid if it does not have its checksum.
func at(rowid int64, err error) error {
	var damaged *damagedError
	if errors.As(err, &damaged) {
		damaged.rowid = rowid
	}
	return err
}
