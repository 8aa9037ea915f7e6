package sqlite

import (
	"context"
	"errors"
	"fmt"

	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"byre/sqlstore"
)

// translate turns the engine's errors into sqlstore's. Nothing but COMMIT can
// have an unknown outcome; see translateCommit.
func translate(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var e *engine.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
		sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL:
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, err)
	}
	return err
}

// translateCommit is translate for COMMIT: when writing or syncing the log
// failed, its last frames may be found in the file after a crash, or not.
func translateCommit(err error) error {
	var e *engine.Error
	if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_IOERR {
		return fmt.Errorf("%w: %w", sqlstore.ErrUnknown, err)
	}
	return translate(err)
}

// isDuplicate reports whether an insert found its key taken.
func isDuplicate(err error) bool { return hasCode(err, sqlite3.SQLITE_CONSTRAINT_UNIQUE) }

// hasCode reports whether the engine's error has the (extended) result code.
func hasCode(err error, code int) bool {
	var e *engine.Error
	return errors.As(err, &e) && e.Code() == code
}
