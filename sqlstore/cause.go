package sqlstore

import "errors"

// Cause is why a database can't do what it was asked for, in words that a client
// may read. It matches ErrUnavailable or ErrDatabase.
//
// Invariant: the text is this program's own. What the database itself said (SQL,
// paths, addresses) stands in the error that wraps the Cause and is the
// operator's alone; Public takes the two apart.
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

// Public is what a client, or anybody who asks for the server's health, may be told
// of an error of the store.
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
