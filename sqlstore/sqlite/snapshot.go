package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

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
				return scanRecord(tx.QueryRowContext(ctx, selectObject, key.Group, key.Resource, key.Owner.String(), key.Namespace,
					key.Name), key)
			},
		}
		s.Time = snapshotTime()
		var lineage string
		if err := tx.QueryRowContext(ctx, selectHeader).Scan(&s.Revision, &s.Compacted, &s.CompleteAfter, &s.Epoch,
			&s.ObjectCount, &lineage); err != nil {
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
var errNotLeft = errors.New(
	"the database is not what the last process has left, because it was killed with volatile changes in memory, " +
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
func rowsOf[T any](
	ctx context.Context, tx *sql.Tx, query string, scan func(*sql.Rows) (*T, error), arguments ...any,
) iter.Seq2[*T, error] {
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
	err := rows.Scan(&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &s.uid, &r.Generation, &r.Created,
		&r.Revision,
		&stamp, &r.Author.Verb, &r.Author.Subresource, &r.Author.Manager, &r.Author.User, &r.Author.RealUser,
		&s.encoding, &s.expires, &s.value, &s.sum, &written)
	if err == nil {
		record, err = s.record("current_objects", r.Revision, r.Key, r.Created, r.Revision)
	}
	if err == nil {
		err = compare(written, func() int64 {
			return writtenSum(r.Key, r.Revision, stamp, r.Author, r.Generation)
		}, "current_objects", r.Revision, r.Key)
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
	err := rows.Scan(&r.Revision, &stamp, (*string)(&r.Op), &r.Author.Verb, &r.Author.Subresource, &r.Author.Manager,
		&r.Author.User, &r.Author.RealUser, &r.Author.AuditID,
		&r.Group, &r.Resource, &r.Owner, &r.Namespace, &r.Name, &s.uid, &r.Replaces, &r.Created,
		&s.encoding, &s.expires, &s.value, &s.sum, &changed)
	if err == nil {
		replaced, err = s.record("undo_log", r.Revision, r.Key, r.Created, r.Replaces)
	}
	if err == nil {
		err = compare(changed, func() int64 {
			return changeSum(r.Key, r.Revision, stamp, r.Op, r.Author, r.Replaces)
		}, "undo_log", r.Revision, r.Key)
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

// loadingSuffix is the suffix of the file, beside the database, that Load fills.
const loadingSuffix = ".loading"

// Load fills the database at path with a snapshot. The file must not exist, or have the schema
// and no data. Load fails with sqlstore.ErrNotEmpty if it holds data, with a
// *migrations.InUseError if a process has it open, and with sqlstore.ErrBroken if the snapshot is
// broken.
//
// Invariant: the file at path is either unchanged or holds the whole snapshot. Load fills a
// new file beside it, syncs that file, and renames it. It holds the lock of path until then.
// If the process is killed, the next Load deletes the new file. Otherwise a server could start
// on a part of a store.
func Load(ctx context.Context, path string, s sqlstore.Snapshot) (err error) {
	if err := migrations.MkdirAllOwned(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the database's folder: %w", err)
	}
	lock, err := migrations.AcquireFile(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	f := &file{path: lock.Path + loadingSuffix, busy: defaultBusy}
	replaced, err := refuseData(ctx, lock.Path)
	if err == nil {
		err = errors.Join(removeDatabase(f.path), f.load(ctx, s, replaced))
	}
	if err == nil {
		// The log of the old file must not stay: SQLite would apply it to the new one. Nor must
		// the record of the old one's last backup.
		err = errors.Join(removeLog(lock.Path), remove(lock.Path+lastBackupSuffix), os.Rename(f.path, lock.Path),
			migrations.SyncDir(filepath.Dir(lock.Path)))
	}
	return errors.Join(f.translate(err), removeDatabase(f.path))
}

// refuseData fails with sqlstore.ErrNotEmpty if the file holds data. replaced describes the
// file; it is nil if there is none.
func refuseData(ctx context.Context, path string) (replaced os.FileInfo, err error) {
	fresh, err := migrations.InspectFile(path)
	if err != nil {
		return nil, err
	}
	if replaced, err = os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil || fresh {
		return replaced, err
	}
	f := &file{path: path, busy: defaultBusy}
	db := f.connect(1, f.reading())
	defer db.Close()
	var rows int
	schema, err := migrations.SQLiteSchema(ctx, db)
	if err == nil && schema.Version > 0 {
		err = db.QueryRowContext(ctx, countData).Scan(&rows)
	}
	switch {
	case err != nil:
		return nil, f.translate(err)
	case rows > 0:
		return nil, fmt.Errorf("%s: %w", path, sqlstore.ErrNotEmpty)
	}
	return replaced, nil
}

// load makes the file and fills it. It uses no journal, because after a crash nobody
// reads the file.
func (f *file) load(ctx context.Context, s sqlstore.Snapshot, replaced os.FileInfo) (err error) {
	if _, err := migrations.Up(ctx, (&url.URL{Scheme: "sqlite", Path: f.path}).String()); err != nil {
		return err
	}
	db := f.connect(1, []setting{
		f.busyTimeout(),
		{name: "locking_mode", value: "exclusive"},
		{name: "journal_mode", value: "off"},
		{name: "synchronous", value: "0"},
		{name: "cache_size", value: "-64000"},
	})
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	if err := fill(ctx, tx, s.Checked()); err != nil {
		return errors.Join(err, tx.Rollback(), db.Close())
	}
	if err := errors.Join(tx.Commit(), db.Close()); err != nil {
		return err
	}
	// The first connection with these settings sets WAL mode in the header of the file.
	db = f.connect(1, f.settings())
	if err := errors.Join(db.PingContext(ctx), db.Close()); err != nil {
		return err
	}
	return errors.Join(copyModeAndOwner(f.path, replaced), syncFile(f.path))
}

// fill inserts the rows. It drops the indexes before and makes them again afterwards, which
// takes a fraction of the time. The unique indexes then refuse a key that occurs twice.
func fill(ctx context.Context, tx *sql.Tx, s sqlstore.Snapshot) error {
	indexes, err := dropIndexes(ctx, tx)
	if err != nil {
		return err
	}
	ids := sqlstore.NewNumbering(&s.Header)
	if err := fillObjects(ctx, tx, s, ids); err != nil {
		return err
	}
	if err := fillChanges(ctx, tx, s, ids); err != nil {
		return err
	}
	for _, index := range indexes {
		if _, err := tx.ExecContext(ctx, index); err != nil {
			return explainDuplicate(err)
		}
	}
	if err := ids.All(func(of sqlstore.Resource, id int64, r sqlstore.Retained) error {
		_, err := tx.ExecContext(ctx, insertLoaded, id, of.Group, of.Resource, of.Owner.String(),
			r.ResumableAfter, r.CompleteAfter, int64(r.RetainedFor/time.Second))
		return err
	}); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, setCounters, s.Revision, s.Compacted, s.CompleteAfter, s.Epoch)
	return err
}

func fillObjects(ctx context.Context, tx *sql.Tx, s sqlstore.Snapshot, ids *sqlstore.Numbering) error {
	insert, err := tx.PrepareContext(ctx, insertObject) //nolint:sqlclosecheck // the defer below closes it
	if err != nil {
		return err
	}
	defer insert.Close()
	for r, err := range s.Objects {
		if err != nil {
			return err
		}
		a, stamp, value := r.Author, formatTime(r.Time), sqlstore.Text(r.Value)
		if _, err := insert.ExecContext(ctx, r.Revision, ids.ID(r.Of()), r.Namespace, r.Name, r.UID, r.Generation, r.Created,
			stamp, a.Verb, a.Subresource, a.Manager, a.User, a.RealUser, r.Encoding, formatExpiry(r.Expires), value,
			recordSum(r.Key, r.UID, r.Created, r.Revision, r.Encoding, expiryText(r.Expires), value),
			writtenSum(r.Key, r.Revision, stamp, a, r.Generation)); err != nil {
			return explainDuplicate(err)
		}
	}
	return nil
}

func fillChanges(ctx context.Context, tx *sql.Tx, s sqlstore.Snapshot, ids *sqlstore.Numbering) error {
	insert, err := tx.PrepareContext(ctx, insertUndo) //nolint:sqlclosecheck // the defer below closes it
	if err != nil {
		return err
	}
	defer insert.Close()
	for r, err := range s.Changes {
		if err != nil {
			return err
		}
		a, stamp, value := r.Author, formatTime(r.Time), sqlstore.Text(r.Value)
		var encoding, replaced, sum any
		if r.Op != sqlstore.Create {
			encoding, replaced = r.Encoding, value
			sum = recordSum(r.Key, r.UID, r.Created, r.Replaces, r.Encoding, expiryText(r.Expires), value)
		}
		if _, err := insert.ExecContext(ctx, r.Revision, stamp, string(r.Op), a.Verb, a.Subresource, a.Manager, a.User,
			a.RealUser, a.AuditID,
			ids.ID(r.Of()), r.Namespace, r.Name, r.UID, r.Replaces, r.Created, encoding, formatExpiry(r.Expires), replaced,
			sum, changeSum(r.Key, r.Revision, stamp, r.Op, a, r.Replaces)); err != nil {
			return err
		}
	}
	return nil
}

// explainDuplicate turns the error of a unique index into sqlstore.ErrBroken: two objects have
// the same key, or the same create revision. It returns other errors unchanged.
func explainDuplicate(err error) error {
	if isDuplicate(err) || hasCode(err, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY) {
		return fmt.Errorf("%w: two objects have the same key, or were created by the same revision", sqlstore.ErrBroken)
	}
	return err
}

// dropIndexes drops the indexes of the tables current_objects and undo_log, and returns the
// statements that make them.
func dropIndexes(ctx context.Context, tx *sql.Tx) (statements []string, err error) {
	type index struct{ drop, create string }
	indexes, err := collect(func(rows *sql.Rows) (i index, err error) {
		err = rows.Scan(&i.drop, &i.create)
		return i, err
	})(tx.QueryContext(ctx, selectIndexes)) //nolint:rowserrcheck // collect checks it
	if err != nil {
		return nil, err
	}
	for _, i := range indexes {
		if _, err := tx.ExecContext(ctx, i.drop); err != nil {
			return nil, err
		}
		statements = append(statements, i.create)
	}
	return statements, nil
}

// copyModeAndOwner gives the file at path the mode and the owner of the file that it replaces,
// if there is one.
func copyModeAndOwner(path string, replaced os.FileInfo) error {
	if replaced == nil {
		return nil
	}
	err := os.Chmod(path, replaced.Mode().Perm())
	if owner, ok := replaced.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Getuid() {
		err = errors.Join(err, os.Chown(path, int(owner.Uid), int(owner.Gid)))
	}
	return err
}

func removeDatabase(path string) error {
	return errors.Join(remove(path), remove(path+"-journal"), removeLog(path), remove(path+migrations.LockSuffix))
}

func removeLog(path string) error { return errors.Join(remove(path+"-wal"), remove(path+"-shm")) }

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func syncFile(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// lastBackupSuffix is the suffix of the file, beside the database, that has the record of the
// last backup. The record is no row of the database, because only the process that serves the
// database writes to it.
//
// Invariant: the record is of the database that it lies beside, and not of one that was there
// before. Load deletes it, and Open if the store has never held anything.
const lastBackupSuffix = ".last-backup"

// RecordBackup stores the record of a backup of the database in the file at path, which may be
// in use.
func RecordBackup(path string, b sqlstore.LastBackup) error {
	text, err := b.Encode()
	if err != nil {
		return err
	}
	if path, err = migrations.ResolveFile(path); err == nil {
		err = migrations.WriteFileOwned(path+lastBackupSuffix, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("last backup: %w", err)
	}
	return nil
}

// ReadLastBackup returns the record that RecordBackup has stored for the database in the file
// at path. It fails with sqlstore.ErrNotFound if there is none.
func ReadLastBackup(path string) (sqlstore.LastBackup, error) {
	path, err := migrations.ResolveFile(path)
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path + lastBackupSuffix)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = sqlstore.ErrNotFound
	}
	if err != nil {
		return sqlstore.LastBackup{}, fmt.Errorf("last backup: %w", err)
	}
	return sqlstore.DecodeLastBackup(text)
}

// LastBackup implements sqlstore.Driver.
func (d *Driver) LastBackup(context.Context) (sqlstore.LastBackup, error) {
	return ReadLastBackup(d.file.path)
}
