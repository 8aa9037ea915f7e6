package sqlstore

import (
	"errors"
	"fmt"
)

var (
	// ErrExists means that a Create found an object under its key.
	ErrExists = errors.New("object exists")
	// ErrNotFound means that there is no object under the key.
	ErrNotFound = errors.New("object not found")
	// ErrRequired means that the object that the write requires is not as it requires, or does
	// not exist; see Write.Requires. The change did not happen.
	ErrRequired = errors.New("the object that the write requires has changed or is gone")
	// ErrInUse means that a resource has objects; see Write.RequiresNone. The change did not
	// happen.
	ErrInUse = errors.New("the resource has objects")
	// ErrCompacted means that the revision asked for is older than what history holds, or of an epoch before.
	ErrCompacted = errors.New("revision is compacted")
	// ErrFuture means that the revision asked for has not happened yet.
	ErrFuture = errors.New("revision is in the future")
	// ErrUnavailable means that the database can't be reached or can't write now; the
	// change did not happen.
	ErrUnavailable = errors.New("the database is not available")
	// ErrUnknown means that the connection broke while COMMIT was under way; the change
	// happened once or not at all.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrDatabase means that the database answered with an error that the next attempt
	// would get again (a damaged file, a missing table or privilege). The change did not
	// happen.
	ErrDatabase = errors.New("the database failed")
	// ErrInvalid means that a key, value or position can't be stored in every database;
	// see Write.Check. The change did not happen.
	ErrInvalid = errors.New("not storable")
	// ErrKeyTooLong means that the key of a Create has more than MaxKeyBytes. It matches
	// ErrInvalid.
	ErrKeyTooLong = fmt.Errorf("%w: key of more than %d bytes", ErrInvalid, MaxKeyBytes)
	// ErrQuota means that the database has reached Options.Quota, and the change would
	// have made it larger. The change did not happen.
	ErrQuota = errors.New("database space exceeded")
	// ErrClosed means that the store is shutting down; the change did not happen.
	ErrClosed = errors.New("store is closed")
)

// ConflictError means that an Update or Delete found the key at another revision than
// the one it replaces. It matches ErrConflict.
type ConflictError struct {
	// Current is the revision that the key is at.
	Current int64
}

// ErrConflict matches every *ConflictError.
var ErrConflict = errors.New("object is at another revision")

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("object is at revision %d", e.Current)
}

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Cause is the reason why a database fails, in words that a client may read. It matches
// ErrUnavailable or ErrDatabase.
//
// Invariant: the text is byre's own. The database's own message (SQL, paths, addresses)
// is in the error that wraps the Cause, and only the operator reads it. Public separates
// the two.
type Cause struct {
	text string
	kind error
}

// The causes that drivers tell apart.
var (
	// ErrDiskFull means that the disk is full.
	ErrDiskFull = &Cause{"the disk is full", ErrUnavailable}
	// ErrReadOnly means that the file, or the server, takes no writes.
	ErrReadOnly = &Cause{"the database is read-only", ErrUnavailable}
	// ErrLocked means that another process kept a lock for longer than the driver waits.
	ErrLocked = &Cause{"the database is locked by another process", ErrUnavailable}
	// ErrIO means that reading or writing the file failed.
	ErrIO = &Cause{"input or output failed", ErrUnavailable}
	// ErrDamaged means that the file does not hold what was written to it.
	ErrDamaged = &Cause{"the database is damaged", ErrDatabase}
)

// Error implements error.
func (c *Cause) Error() string { return c.text }

// Is reports whether target is the kind of error that the cause explains.
func (c *Cause) Is(target error) bool { return target == c.kind }

// Public returns the text that a client, or a health check, may show of an error of the
// store.
func Public(err error) string {
	var cause *Cause
	if errors.As(err, &cause) {
		return cause.text
	}
	for _, sentinel := range []error{ErrUnavailable, ErrUnknown, ErrQuota, ErrClosed, ErrDatabase} {
		if errors.Is(err, sentinel) {
			return sentinel.Error()
		}
	}
	return ErrDatabase.Error()
}
