package sqlstore

import "errors"

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
