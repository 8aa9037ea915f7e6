package sqlite

import (
	"errors"
	"fmt"

	engine "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"byre/sqlstore"
)

// diagnosis is what a result code of the engine means to the store, and what an
// operator can do about it.
type diagnosis struct {
	cause error
	next  string
}

// errMissing means that a change lacks the value that a later change or the current object has.
var errMissing = errors.New("is missing its value")

// nextWhenDamaged is the next step of an operator whose file is damaged.
const nextWhenDamaged = "stop byre, keep a copy of the file and its -wal, run \"byre check\" to see what is damaged, and restore a backup"

// nextWhenFull is the next step of an operator whose disk is full. The last hour may have filled it, which "byre
// compact" keeps by default.
const nextWhenFull = "delete objects and run \"byre compact --keep 0\", or free space on its file system"

// diagnose returns the diagnosis of a result code; see https://sqlite.org/rescode.html.
func diagnose(code int) diagnosis {
	if code == sqlite3.SQLITE_IOERR_SHMSIZE { // the first page of the index of the log
		return diagnosis{sqlstore.ErrDiskFull, "free a megabyte on its file system, and start again"}
	}
	switch code & 0xff {
	case sqlite3.SQLITE_FULL:
		return diagnosis{sqlstore.ErrDiskFull, nextWhenFull}
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return diagnosis{sqlstore.ErrReadOnly, "make the file and its directory writable for byre's user"}
	case sqlite3.SQLITE_CANTOPEN:
		return diagnosis{sqlstore.ErrUnavailable, "check that the file and its directory are there and belong to byre's user"}
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return diagnosis{sqlstore.ErrLocked, "end the other program's transaction, of a sqlite3 shell for example"}
	case sqlite3.SQLITE_IOERR:
		return diagnosis{sqlstore.ErrIO, "check the disk and the kernel's log"}
	case sqlite3.SQLITE_NOMEM:
		return diagnosis{sqlstore.ErrUnavailable, "give the process more memory"}
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return diagnosis{sqlstore.ErrDamaged, nextWhenDamaged}
	default:
		return diagnosis{sqlstore.ErrDatabase, "see \"byre migrate status\", or restore a backup"}
	}
}

// commitError is a COMMIT that failed.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// translate turns an error of the engine into one of sqlstore, with the file and the next step
// for the operator. It returns other errors unchanged. Each exported method calls it once.
//
// Only a COMMIT that failed with an I/O error has an unknown outcome: after a crash, SQLite may
// or may not find the last frames of the log, whose write or sync failed.
func (f *file) translate(err error) error {
	var damaged *damagedError
	var counters *countersError
	if errors.As(err, &damaged) || errors.As(err, &counters) || errors.Is(err, errMissing) {
		return fmt.Errorf("%w: %s: %w: %s", sqlstore.ErrDamaged, f.path, err, nextWhenDamaged)
	}
	var e *engine.Error
	if !errors.As(err, &e) {
		return err
	}
	x := diagnose(e.Code())
	var committing *commitError
	if errors.As(err, &committing) && errors.Is(x.cause, sqlstore.ErrIO) {
		x.cause = sqlstore.ErrUnknown
	}
	return fmt.Errorf("%w: %s: %w: %s", x.cause, f.path, err, x.next)
}

// isDuplicate reports whether an insert failed because the key exists.
func isDuplicate(err error) bool { return hasCode(err, sqlite3.SQLITE_CONSTRAINT_UNIQUE) }

// hasCode reports whether the engine's error has the (extended) result code.
func hasCode(err error, code int) bool {
	var e *engine.Error
	return errors.As(err, &e) && e.Code() == code
}
