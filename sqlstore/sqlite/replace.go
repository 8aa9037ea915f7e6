package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"byre/migrations"
)

// divergedSuffix is before the time in the name of a database that SetAside keeps.
const divergedSuffix = ".diverged-"

// SetAside takes away the database at path, if there is one, because the servers go on from the copy. It
// deletes the database if the copy has its last change. Otherwise it renames it, and returns the new name.
// The caller has the database's lock, and the copy has no log.
func SetAside(ctx context.Context, path, copied string, now time.Time) (kept string, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	isIn, err := hasLastChange(ctx, path, copied)
	if err == nil && isIn {
		return "", errors.Join(remove(path), removeLog(path))
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	// The log is copied back first, so that one file has everything. If that fails, such as for a damaged
	// database, it keeps the name that SQLite looks for.
	f := &file{path: path, busy: defaultBusy}
	db := f.connect(1, f.settings())
	_ = errors.Join(db.PingContext(ctx), db.Close())
	kept = path + divergedSuffix + now.UTC().Format("20060102T150405Z")
	err = os.Rename(path, kept)
	if logErr := os.Rename(path+"-wal", kept+"-wal"); !errors.Is(logErr, os.ErrNotExist) {
		err = errors.Join(err, logErr)
	}
	return kept, errors.Join(err, removeLog(path))
}

// Replace makes the copy the database at path, after SetAside, and returns what SetAside does. The caller has
// synced the copy.
func Replace(ctx context.Context, path, copied string, now time.Time) (kept string, err error) {
	if kept, err = SetAside(ctx, path, copied, now); err != nil {
		return kept, err
	}
	// A log of before must not stay: SQLite would apply it to the new file.
	return kept, errors.Join(removeLog(path), remove(path+lastBackupSuffix), os.Rename(copied, path), migrations.SyncDir(filepath.Dir(path)))
}

// hasLastChange reports whether the copy has the last change of the database at path. A change is known by
// its revision and its time.
func hasLastChange(ctx context.Context, path, copied string) (has bool, err error) {
	var last int64
	var at string
	err = readTransaction(ctx, path, func(_ *file, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, selectLastChange).Scan(&last, &at)
	})
	if err == nil {
		f := &file{path: copied, busy: defaultBusy, readOnly: true, ignoreLog: true}
		err = f.readTransaction(ctx, func(_ *file, tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, hasChange, last, at).Scan(&has)
		})
	}
	if err != nil {
		return false, fmt.Errorf("compare %s with %s: %w", path, copied, err)
	}
	return has, nil
}
