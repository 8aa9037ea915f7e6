package sqlstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Driver is one database. Its methods are safe for concurrent use, except that
// Commit has one caller at a time. A driver is Exclusive or Shared too.
type Driver interface {
	// Commit makes the writes in one transaction, in order, and returns one Outcome for
	// each. A failed precondition is the Outcome of its own write. The error is that of
	// the whole batch: then no write happened, unless the error is ErrUnknown. With
	// ErrUnknown it returns the Outcomes if reads see the writes, which may be lost all the
	// same; the store publishes them. No two writes of a batch have the same key, and none
	// has the key of another's Requires. An empty batch changes nothing; it fails where the
	// database takes no writes.
	Commit(ctx context.Context, batch []Write) ([]Outcome, error)
	// Get returns the record under key (ErrNotFound) and the revision of the
	// snapshot it was read from, which is valid with ErrNotFound too.
	Get(ctx context.Context, key Key) (Record, int64, error)
	// List calls yield for each record of the query in key order.
	List(ctx context.Context, q Query, yield func(Record) error) (ListResult, error)
	// Changes returns the changes of the query in the order of their revisions, or in the reverse
	// order, with the Values of Old and New. It fails with ErrCompacted if After < History.ResumableAfter of the
	// resource of the query; if the query is of all resources, if After < State.Compacted.
	Changes(ctx context.Context, q ChangesQuery) ([]Change, error)
	// State returns the last revision, the compacted revision, the epoch and the
	// database's clock.
	//
	// Invariant: the answer is never older than what a Commit of any process, or a
	// read of this process, returned before the call. The driver keeps it. Linearizable
	// reads wait for the revision that State returns, and would otherwise miss writes
	// that were acknowledged before they began.
	State(ctx context.Context) (State, error)
	// Histories returns what is left of the history of each resource that has ever had an
	// object. It may also return some that never had one.
	Histories(ctx context.Context) ([]History, error)
	// Compacted returns History.ResumableAfter of a resource, and State.Compacted if the resource
	// has never had an object.
	Compacted(ctx context.Context, of Resource) (int64, error)
	// RevisionAt returns the revision of the last change whose time is not after a moment, by
	// binary search; 0 if the oldest change that is left is younger. Where the database's clock
	// was set back it is the last change before one of those that are after the moment.
	RevisionAt(ctx context.Context, moment time.Time) (int64, error)
	// CountChanges counts the newest changes of a resource that are not after the revision upTo, up to a
	// limit. oldest is the revision of the oldest one that it has counted; 0 if there are none.
	CountChanges(ctx context.Context, of Resource, upTo, limit int64) (count, oldest int64, err error)
	// DeleteHistory deletes changes; see Deletion. deleted is how many; if it is less than
	// Limit, none is left to delete. waited is for how long it has waited for a lock that the
	// writers held, which costs them nothing.
	//
	// Invariant: every change of a resource after its History.ResumableAfter is left, and so every
	// change after State.Compacted, which is the greatest; and every change that leads from the state at its
	// History.CompleteAfter to the present one. DeleteHistory keeps it: in its transaction it moves the three
	// forward to the last revision that it deletes, or up to which it was asked to. A new epoch and a
	// new resource set History.ResumableAfter to State.Compacted: clients may have seen revisions of
	// an epoch before, whose changes are lost. They leave History.CompleteAfter: an epoch deletes nothing, and what
	// it has lost does not lead to the present state.
	DeleteHistory(ctx context.Context, d Deletion) (deleted int, waited time.Duration, err error)
	// SetRetainedFor sets History.RetainedFor of resources, in whole seconds.
	SetRetainedFor(ctx context.Context, ages map[Resource]time.Duration) error
	// Expired returns up to limit records, without their Values, whose expiry is after a time
	// and not after now, those first that expired first.
	Expired(ctx context.Context, after, now time.Time, limit int) ([]Record, error)
	// Notes returns the notes whose names begin with a prefix. Notes have no revision and no history; a backup does
	// not have them.
	Notes(ctx context.Context, prefix string) (map[string]string, error)
	// SetNote changes the value of a note from old to value; "" is that of a note that does not exist. done is false,
	// and nothing is changed, if the value is not old. It fails with ErrUnknown if it may have been changed.
	SetNote(ctx context.Context, name, old, value string) (done bool, err error)
	// Usage adds up the objects of each resource, in one snapshot.
	Usage(ctx context.Context) (Usage, error)
	// Size is the number of bytes that the database takes on disk.
	Size(ctx context.Context) (int64, error)
	// Used is Size without the space inside the files that the database can use for
	// other data, as far as the database tells how much that is. A call is cheap enough
	// to be made every second.
	Used(ctx context.Context) (int64, error)
	// LastBackup returns the record of the last backup of the database. It fails with
	// ErrNotFound if there is none.
	LastBackup(ctx context.Context) (LastBackup, error)
	// Maintain does the driver's work in the background until ctx ends. Store.Run runs it,
	// and logs its error.
	Maintain(ctx context.Context) error
	// Close releases the database.
	Close() error
}

// AfterNotes returns the first name after those that begin with a prefix, which ends in an ASCII character.
func AfterNotes(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}

// Exclusive is a Driver whose database no other process writes to while it is open. The store
// publishes every change of such a database. Its State makes no round trip: it is the read index of a
// leader that holds a lease (Raft, 6.4.1), and fails if another process may hold the lease now.
type Exclusive interface {
	// Probe asks the database itself whether it still answers, which State does not show.
	Probe(ctx context.Context) error
	// InReserve reports whether the disk was full, so that the space is in use that the driver
	// keeps for writes that do not make the database larger, such as deletes. If the disk has
	// space again, it first takes that back.
	InReserve() bool
	// Space measures what the database takes of its file system beside its pages.
	Space() (Space, error)
	// Shrink returns up to limit pages of deleted rows to the file system. done is true if no
	// more are to be returned.
	Shrink(ctx context.Context, limit int) (done bool, err error)
}

// Space is what a database takes and has left on its file system. Sizes are in bytes.
type Space struct {
	// Free is what the process may still write to the file system. NeededFree is what must be free before writes go on
	// that make the database larger; 0 unless the disk was full.
	Free, NeededFree int64
	// IsReserveMissing is true if the file whose space is for deletes on a full disk has not the size that it should
	// have, and not because the disk was full.
	IsReserveMissing bool
	// Log is the size of the write-ahead log, and LogLimit the one at which it starts over if no reader needs it.
	Log, LogLimit int64
	// Reader is for how long at least a reader in a transaction has kept the log from starting over; 0 if none does.
	Reader time.Duration
}

// Shared is a Driver whose database other processes write to as well.
type Shared interface {
	// WithLock calls f while it holds the lock of that name. If another process holds
	// the lock it does not wait: it returns with ran false. The context of f ends when
	// the lock is lost.
	WithLock(ctx context.Context, name string, f func(context.Context) error) (ran bool, err error)
	// Notify hints to other processes that the last revision is at least the given one. A
	// hint may be lost, late or repeated: a caller that must not miss a commit polls State too.
	Notify(ctx context.Context, revision int64) error
	// Listen calls f for each hint, those of this process included, until ctx ends. It
	// reconnects by itself, and then calls f with 0 because it may have missed hints.
	Listen(ctx context.Context, f func(revision int64)) error
}

// Outcome is the result of one write.
type Outcome struct {
	// Revision is the revision of the change; 0 when Err is set.
	Revision int64
	// Time is the time of the change, as it is stored.
	Time time.Time
	// Created is the revision that created the object.
	Created int64
	// UID is the UID of the state that an Update or Delete replaced, and OldBytes the
	// length of that state's value in bytes.
	UID      string
	OldBytes int64
	// Err is ErrRequired, ErrInUse, ErrExists, ErrNotFound, a *ConflictError, or nil: the
	// first of them that applies.
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

// ChangesQuery is what Changes reads.
type ChangesQuery struct {
	// After selects the changes after this revision.
	After int64
	// Before, unless it is 0, selects the changes before this revision. The newest is then the first.
	Before int64
	// Of selects the changes of one resource, which an index finds; nil selects all changes.
	Of *Resource
	// Namespaces, unless nil, selects the changes of objects in one or two namespaces, which
	// an index finds too; "" is that of cluster-scoped objects.
	Namespaces []string
	// Name selects one name in the Namespaces, and NamePrefix the names that begin with it; empty means all.
	Name, NamePrefix string
	// Kept selects the changes that retention has left. Changes then does not fail with
	// ErrCompacted.
	Kept bool
	// KeysOnly returns the changes without the Encodings, expiries and Values of Old and New; both then have
	// the UID of Old.
	KeysOnly bool
	// Limit is the greatest number of changes to return.
	Limit int
	// Size stops the answer after the change with which the sum of the Sizes reaches it; 0
	// sets no bound.
	Size int
}

// Selects reports whether the query selects the changes of an object.
func (q *ChangesQuery) Selects(k Key) bool {
	return (q.Of == nil || k.Of() == *q.Of) &&
		(q.Namespaces == nil || slices.Contains(q.Namespaces, k.Namespace) && (q.Name == "" || k.Name == q.Name) &&
			strings.HasPrefix(k.Name, q.NamePrefix))
}

// Start returns the bounds of Namespaces and of Name, both inclusive. nonEmpty is false if no
// objects can be selected: the caller then does not ask the database, which might fail because of
// the encoding.
func (q *ChangesQuery) Start() (namespaces, names [2]string, nonEmpty bool) {
	names = [2]string{q.Name, q.Name}
	if q.Name == "" {
		names = [2]string{q.NamePrefix, q.NamePrefix + string(utf8.MaxRune)} // names of objects are ASCII
	}
	namespaces = [2]string{q.Namespaces[0], q.Namespaces[len(q.Namespaces)-1]}
	return namespaces, names, storable(namespaces[0]) && storable(namespaces[1]) && storable(names[0])
}

// Resource names the objects of one resource.
type Resource struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	Owner    Owner  `json:"owner"`
}

// Compare is Key.Compare without the namespace and the name.
func (r Resource) Compare(other Resource) int {
	return cmp.Or(
		strings.Compare(r.Group, other.Group), strings.Compare(r.Resource, other.Resource),
		// The columns hold the names of owners, whose order is that of the numbers.
		cmp.Compare(r.Owner, other.Owner),
	)
}

// String returns the resource as people write it, such as deployments.apps.
func (r Resource) String() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// History is what is left of the history of one resource.
type History struct {
	Resource
	// ResumableAfter is where the history ends for those who go on from a revision that they have seen: a List of the
	// resource at, and its Changes after, an earlier revision fail with ErrCompacted. A deletion of changes moves it
	// forward, and so does a new epoch, before which clients may have seen commits that are lost.
	ResumableAfter int64
	// CompleteAfter is where the past ends, for Query.Past: it is the last revision up to which changes of the resource
	// may be deleted or missing. It is not after ResumableAfter. See the invariant of Driver.DeleteHistory.
	CompleteAfter int64
	// First is the revision of the oldest change that is left, and FirstTime its time; 0 if
	// none is left.
	First     int64
	FirstTime time.Time
	// RetainedFor is the age at which the last process has deleted changes of the resource;
	// negative means never, and 0 that none has said so.
	RetainedFor time.Duration
}

// Deletion selects the changes that DeleteHistory deletes: the oldest ones of a resource.
type Deletion struct {
	Of Resource
	// UpTo is the last revision to delete.
	UpTo int64
	// Before selects the changes made before this time, up to the first that was not. If it
	// is zero, all changes up to UpTo are deleted, and both ends of the History reach UpTo with the last of
	// them.
	Before time.Time
	// Limit is the greatest number of changes to delete.
	Limit int
}

// Query is what List reads.
type Query struct {
	Range
	// At is the revision to read at; 0 means the last one. List fails with ErrCompacted
	// if At < ResumableAfter of the resource, and with ErrFuture if At > State.Revision.
	At int64
	// Past is for those who ask what was, and go on from nothing that they have seen: List fails with ErrCompacted if
	// At < CompleteAfter of the resource instead.
	Past bool
	// Replaced leaves out the records that no change after At has replaced or deleted: who follows the
	// changes has them.
	Replaced bool
	// Limit is the greatest number of records to yield; 0 means all.
	Limit int
	// KeysOnly yields Records without their Values.
	KeysOnly bool
	// Count asks for ListResult.Remaining. The database then reads the index of the whole
	// range.
	Count bool
}

// ListResult describes what List has yielded, all of it from one snapshot.
type ListResult struct {
	// Revision is the revision of the snapshot: Query.At, or the last revision.
	Revision int64
	// More is true when Limit left out records; Remaining is how many, if Query.Count is
	// set.
	More      bool
	Remaining int64
}
