package sqlstore

import (
	"context"
	"time"
)

// Driver is one database. Its methods are safe for concurrent use, except that
// Commit has one caller at a time.
type Driver interface {
	// Commit makes the writes in one transaction, in order, and returns one Outcome for
	// each. A failed precondition is the Outcome of its own write. The error is that of
	// the whole batch: then no write happened, unless the error is ErrUnknown. No two
	// writes of a batch have the same key. An empty batch changes nothing; it fails where
	// the database takes no writes.
	Commit(ctx context.Context, batch []Write) ([]Outcome, error)
	// Get returns the record under key (ErrNotFound) and the revision of the
	// snapshot it was read from, which is valid with ErrNotFound too.
	Get(ctx context.Context, key Key) (Record, int64, error)
	// List calls yield for each record of the query in key order.
	List(ctx context.Context, q Query, yield func(Record) error) (ListResult, error)
	// Changes returns up to limit changes after a revision, Old and New with
	// their Values, in order. The last one is the one with which their Values
	// come to size bytes or more; a size of 0 sets no bound.
	// ErrCompacted where after < State.Compacted.
	Changes(ctx context.Context, after int64, limit, size int) ([]Change, error)
	// State returns the counters as of now. Invariant: the answer is never older
	// than what a Commit of any process, or a read of this one, returned before the
	// call. A linearizable read asks it for the revision to wait for.
	State(ctx context.Context) (State, error)
	// Compact forgets up to limit changes with a revision <= upTo, oldest
	// first, and moves State.Compacted; done is true when none is left.
	Compact(ctx context.Context, upTo int64, limit int) (done bool, err error)
	// Expired returns keys and revisions (no values) of up to limit records
	// that have expired at now.
	Expired(ctx context.Context, now time.Time, limit int) ([]Record, error)
	// Usage adds up the objects of each resource, in one snapshot.
	Usage(ctx context.Context) (Usage, error)
	// Close releases the database.
	Close() error
}

// Sizer is a Driver that can say how large its database is.
type Sizer interface {
	// Size is the number of bytes that the database takes on disk.
	Size(ctx context.Context) (int64, error)
	// Used is the part of it that can't be used again for other data, as far as the
	// database tells. It costs little enough to be asked for every second.
	Used(ctx context.Context) (int64, error)
}

// Maintainer is a Driver with work to do in the background, as long as it is
// used. Store.Run runs it.
type Maintainer interface {
	// Maintain returns when ctx ends. The store logs its error.
	Maintain(ctx context.Context) error
}

// ReadIndexer is a Driver whose database no other process writes to while it is open,
// so that the last revision is known without asking: the read index of a leader that
// holds a lease (Raft, 6.4.1). Every change of its database comes by Publish.
type ReadIndexer interface {
	// ReadIndex is State without a round trip.
	ReadIndex() State
}

// Prober is a Driver that can say whether its database still answers, where State
// does not show that.
type Prober interface {
	// Probe asks the database itself whether it still answers.
	Probe(ctx context.Context) error
}

// Locker is a Driver whose database other processes write to as well.
type Locker interface {
	// WithLock runs f unless another process runs one under the same name
	// now; ran says whether it did. f's context ends when the lock is lost.
	WithLock(ctx context.Context, name string, f func(context.Context) error) (ran bool, err error)
}

// Notifier is a Driver that can tell other processes of commits. A hint may be
// lost, late or repeated: a caller that must not miss a commit polls State too.
type Notifier interface {
	// Notify hints that the last revision is at least the given one.
	Notify(ctx context.Context, revision int64) error
	// Listen calls f for each hint, of this process's too, until ctx ends; it
	// reconnects by itself, and calls f with 0 when hints may have been missed.
	Listen(ctx context.Context, f func(revision int64)) error
}

// Outcome is the result of one write.
type Outcome struct {
	// Revision is the change's own; 0 when Err is set.
	Revision int64
	// Time is the change's, as its row has it.
	Time time.Time
	// Created is the revision that created the object.
	Created int64
	// UID is that of the state which an Update or Delete replaced, OldBytes the
	// length of its value.
	UID      string
	OldBytes int64
	// Err is ErrExists, ErrNotFound, a *ConflictError, or nil.
	Err error
}

// Usage is what a store holds at one revision.
type Usage struct {
	Revision  int64
	Resources []ResourceUsage
}

// ResourceUsage is how many objects of one resource there are, and how many
// bytes their values have as they are stored.
type ResourceUsage struct {
	Group    string
	Resource string
	Owner    Owner
	Objects  int64
	Bytes    int64
}

// Query is what List reads.
type Query struct {
	Range
	// At is the revision to read at; 0 means now. ErrCompacted, ErrFuture.
	At int64
	// Limit is the greatest number of records to yield; 0 means all.
	Limit int
	// KeysOnly leaves Values out.
	KeysOnly bool
}

// ListResult says what a List read, all of it from one snapshot.
type ListResult struct {
	// Revision is the snapshot's: Query.At, or the last revision.
	Revision int64
	// More is true when Limit left records out; Remaining is then how many.
	More      bool
	Remaining int64
}
