package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"byre/migrations"
	"byre/sqlstore"
)

// ReadSnapshot calls read with a snapshot of the whole store in the file at path, which it
// reads in one transaction. The snapshot is valid until read returns. A process may serve the
// store meanwhile: the transaction does not block it, but the write-ahead log can't start over
// until the transaction ends.
func ReadSnapshot(ctx context.Context, path string, read func(sqlstore.Snapshot) error) error {
	return readSnapshot(ctx, path, false, read)
}

func readSnapshot(ctx context.Context, path string, idle bool, read func(sqlstore.Snapshot) error) error {
	return readTransaction(ctx, path, func(f *file, tx *sql.Tx) error {
		s := sqlstore.Snapshot{
			Objects: rowsOf(ctx, tx, selectObjects, scanObjectRow),
			Changes: rowsOf(ctx, tx, selectUndo, scanChangeRow),
			Get: func(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
				return scanRecord(tx.QueryRowContext(ctx, selectObject, key.Group, key.Resource, key.Owner.String(), key.Namespace, key.Name), key)
			},
		}
		s.Time = snapshotTime()
		var lineage string
		if err := tx.QueryRowContext(ctx, selectHeader).Scan(&s.Revision, &s.Compacted, &s.Epoch, &s.ObjectCount, &lineage); err != nil {
			return err
		}
		histories, err := collect(scanHistory)(tx.QueryContext(ctx, selectHistories)) //nolint:rowserrcheck // collect checks it
		if err != nil {
			return err
		}
		s.SetRetained(histories)
		if idle && lineage != "" {
			if left, now, err := f.origins(lineage, s.Revision); err != nil || !left.precedes(now) {
				return errors.Join(err, fmt.Errorf("%s: %w", f.path, errNotLeft))
			}
		}
		return read(s)
	})
}

func snapshotTime() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// ReadIdle is ReadSnapshot of a store that no process serves. It locks the store until read
// returns. It fails with a *migrations.InUseError if a process serves the store, and with errNotLeft if a
// start would begin a new epoch.
func ReadIdle(ctx context.Context, path string, read func(sqlstore.Snapshot) error) (err error) {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("open database: %w", err) // migrations.AcquireFile would make a lock without a database
	}
	lock, err := migrations.AcquireFile(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return readSnapshot(ctx, lock.Path, true, read)
}

// errNotLeft means that the file may lack commits that clients have seen; see committer.resumeLineage.
var errNotLeft = errors.New("the database is not what the last process has left, because it was killed with volatile changes in memory, " +
	"or because the file was restored or moved: start byre on it and stop it, or use \"byre restore --from\"")

// readTransaction calls do with a transaction on the file at path, which reads only.
func readTransaction(ctx context.Context, path string, do func(*file, *sql.Tx) error) error {
	f := &file{path: path, busy: defaultBusy, readOnly: true}
	return f.translate(f.readTransaction(ctx, do))
}

func (f *file) readTransaction(ctx context.Context, do func(*file, *sql.Tx) error) error {
	// migrations.InspectFile is not used: it closes the file, which would release the locks that
	// a driver of this process has on it.
	db := f.connect(1, f.reading())
	defer db.Close()
	var id int64
	if err := db.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&id); err != nil {
		return err
	}
	if id != migrations.ApplicationID {
		return fmt.Errorf("%s: %w", f.path, migrations.ErrForeign)
	}
	if err := f.check(ctx); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	// The transaction has written nothing; the rollback only ends it.
	defer func() { _ = tx.Rollback() }()
	return do(f, tx)
}

// rowsOf returns the rows of a query, which it reads one at a time.
func rowsOf[T any](ctx context.Context, tx *sql.Tx, query string, scan func(*sql.Rows) (*T, error), arguments ...any) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		each(scan)(tx.QueryContext(ctx, query, arguments...))(yield) //nolint:rowserrcheck // each checks it
	}
}

func scanObjectRow(rows *sql.Rows) (*sqlstore.ObjectRow, error) {
	r := &sqlstore.ObjectRow{}
	var stamp string
	var s stored
	var written sql.NullInt64
	var record sqlstore.Record
	err := rows.Scan(&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &s.uid, &r.Generation, &r.Created, &r.Revision,
		&stamp, &r.Author.Verb, &r.Author.Subresource, &r.Author.Manager, &r.Author.User, &r.Author.RealUser,
		&s.form, &s.expires, &s.value, &s.sum, &written)
	if err == nil {
		record, err = s.record("current_objects", r.Revision, r.Key, r.Created, r.Revision)
	}
	if err == nil {
		err = compare(written, func() int64 { return writtenSum(r.Key, r.Revision, stamp, r.Author, r.Generation) }, "current_objects", r.Revision, r.Key)
	}
	if err == nil {
		r.Time, err = parseTime(stamp)
	}
	if err != nil {
		return nil, at(r.Created, err)
	}
	r.Record = record
	return r, nil
}

func scanChangeRow(rows *sql.Rows) (*sqlstore.ChangeRow, error) {
	r := &sqlstore.ChangeRow{}
	var stamp string
	var s stored
	var changed sql.NullInt64
	var replaced sqlstore.Record
	err := rows.Scan(&r.Revision, &stamp, (*string)(&r.Op), &r.Author.Verb, &r.Author.Subresource, &r.Author.Manager, &r.Author.User, &r.Author.RealUser, &r.Author.AuditID,
		&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &s.uid, &r.Replaces, &r.Created, &s.form, &s.expires, &s.value, &s.sum, &changed)
	if err == nil {
		replaced, err = s.record("undo_log", r.Revision, r.Key, r.Created, r.Replaces)
	}
	if err == nil {
		err = compare(changed, func() int64 { return changeSum(r.Key, r.Revision, stamp, r.Op, r.Author, r.Replaces) }, "undo_log", r.Revision, r.Key)
	}
	if err == nil && r.Op == sqlstore.Create && r.Created != r.Revision { // no checksum has it
		err = &damagedError{table: "undo_log", revision: r.Revision, key: r.Key}
	}
	if err == nil {
		r.Time, err = parseTime(stamp)
	}
	if err != nil {
		return nil, at(r.Revision, err)
	}
	r.UID, r.Encoding, r.Expires, r.Value = replaced.UID, replaced.Encoding, replaced.Expires, replaced.Value
	return r, nil
}
