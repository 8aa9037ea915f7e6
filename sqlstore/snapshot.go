package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"time"
)

// Snapshot is all of a store at one revision. Both sequences stream: one row at a time is
// in memory. The reader reads all of Objects before Changes. A sequence that fails yields
// its error last, with a nil row. The reader may keep the rows and their Values.
//
// Each driver's ReadSnapshot makes a Snapshot of a database, which may be in use, and its
// Load fills an empty database with one, so that Load inside ReadSnapshot copies a store.
// The sequences of ReadSnapshot can be read any number of times; Load reads them once.
type Snapshot struct {
	Header
	// Objects are all current objects. ReadSnapshot yields them in key order; Load
	// accepts any order.
	Objects iter.Seq2[*ObjectRow, error]
	// Changes are the rows of the undo log in the order of their revisions: first those that
	// are left of revisions up to Header.Compacted, then one row for every revision after it,
	// up to Header.Revision.
	Changes iter.Seq2[*ChangeRow, error]
	// Get is Driver.Get in a snapshot of ReadSnapshot, and else nil. It is not called while a sequence is read.
	Get func(context.Context, Key) (Record, int64, error)
}

// Header is the state of the store of a Snapshot.
type Header struct {
	// Revision, Compacted and Epoch are those of State.
	Revision  int64
	Compacted int64
	Epoch     string
	// Time is the database's clock when the snapshot was taken.
	Time time.Time
	// Cluster names the cluster whose objects the store has, if the caller of ReadSnapshot sets it. Load does not read it.
	Cluster string
	// ObjectCount is the number of Objects; negative if it is not known.
	ObjectCount int64
	// Retained has the resources whose history is deleted up to a revision other than
	// Compacted, and those of which is known for how long it is kept.
	Retained map[Resource]Retained
}

// IsSameCluster reports whether two snapshots are of one cluster. Without the Clusters of both, it compares the Epochs.
func (h *Header) IsSameCluster(other *Header) bool {
	if h.Cluster != "" && other.Cluster != "" {
		return h.Cluster == other.Cluster
	}
	return h.Epoch == other.Epoch
}

// Retained has the fields of History of these names.
type Retained struct {
	Compacted   int64
	RetainedFor time.Duration
}

// RetainedOf returns the Retained of a resource.
func (h *Header) RetainedOf(of Resource) Retained {
	if r, ok := h.Retained[of]; ok {
		return r
	}
	return Retained{Compacted: h.Compacted}
}

// SetRetained sets Retained.
func (h *Header) SetRetained(histories []History) {
	h.Retained = make(map[Resource]Retained)
	for _, of := range histories {
		if of.Compacted != h.Compacted || of.RetainedFor != 0 {
			h.Retained[of.Resource] = Retained{of.Compacted, of.RetainedFor}
		}
	}
}

// ObjectRow is a row of the view objects: one current object. It embeds Record, which embeds Key,
// and is not flat as ChangeRow is, because it holds a whole Record: what makes or reads Records
// gets &row.Record. Its JSON, and that of ChangeRow, is that of a backup, without the Value.
type ObjectRow struct {
	Record
	// Generation is metadata.generation; 0 if the object has none.
	Generation int64 `json:"generation,omitempty"`
	// Time is when the object was last written, and Author who wrote it, without the AuditID.
	Time time.Time `json:"time"`
	Author
}

// ChangeRow is a row of the view changes: one change, with the state that it
// replaced. The state that it wrote is in the next ChangeRow of the key, or in its ObjectRow
// if there is no later change.
type ChangeRow struct {
	Revision int64     `json:"revision"`
	Op       Op        `json:"op"`
	Time     time.Time `json:"time"`
	Author
	Key
	// UID is that of the replaced state; that of the new state for a Create.
	UID string `json:"uid,omitempty"`
	// Replaces is the revision of the replaced state; 0 for a Create.
	Replaces int64 `json:"replaces,omitempty"`
	// Created is the revision that created the object.
	Created int64 `json:"created"`
	// Encoding, Expires and Value are those of the replaced state. Value is nil for a Create.
	Encoding string    `json:"form,omitempty"`
	Expires  time.Time `json:"expires,omitzero"`
	Value    []byte    `json:"-"`
}

var (
	// ErrNotEmpty means that the database that Load was to fill holds data.
	ErrNotEmpty = errors.New("the database holds data: load into an empty one")
	// ErrBroken means that a Snapshot has rows that no store can have.
	ErrBroken = errors.New("snapshot is broken")
)

// Checked returns the snapshot with sequences that fail with ErrBroken at a row that
// contradicts the header or that a database can't store: a text that is not storable, a
// revision out of range, a change out of order or missing, a number of objects other than
// Header.ObjectCount. Some of this shows only at the end: Load reads both sequences to
// their ends before it commits.
func (s Snapshot) Checked() Snapshot {
	header, objects, changes := s.Header, s.Objects, s.Changes
	s.Objects = func(yield func(*ObjectRow, error) bool) {
		if err := header.check(); err != nil {
			yield(nil, err)
			return
		}
		count := int64(0)
		for row, err := range objects {
			if err == nil {
				err = row.check(header)
				count++
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(row, nil) {
				return
			}
		}
		if header.ObjectCount >= 0 && count != header.ObjectCount {
			yield(nil, fmt.Errorf("%w: %d objects, its header says %d", ErrBroken, count, header.ObjectCount))
		}
	}
	s.Changes = func(yield func(*ChangeRow, error) bool) {
		last := int64(0)
		for row, err := range changes {
			if err == nil {
				err = row.check(header, last)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			last = row.Revision
			if !yield(row, nil) {
				return
			}
		}
		if last < header.Revision && header.Compacted < header.Revision {
			yield(nil, fmt.Errorf("%w: changes end at revision %d of %d", ErrBroken, last, header.Revision))
		}
	}
	return s
}

func (h Header) check() error {
	if h.Compacted < 0 || h.Compacted > h.Revision || h.Revision == math.MaxInt64 || h.Epoch == "" || !storable(h.Epoch) {
		return fmt.Errorf("%w: revision %d, compacted %d, epoch %q", ErrBroken, h.Revision, h.Compacted, h.Epoch)
	}
	return nil
}

func (r *ObjectRow) check(h Header) error {
	w := Write{Op: Update, Key: r.Key, Replaces: r.Revision, UID: r.UID, Encoding: r.Encoding, Value: r.Value, Expires: r.Expires}
	switch err := w.Check(); {
	case err != nil:
		return fmt.Errorf("%w: revision %d: %w", ErrBroken, r.Revision, err)
	case r.Created <= 0 || r.Created > r.Revision || r.Revision > h.Revision:
		return fmt.Errorf("%w: %v has revision %d, created at %d; the last revision is %d", ErrBroken, r.Key, r.Revision, r.Created, h.Revision)
	case r.Author != r.Author.Clean() || !isStorableTime(r.Time):
		return fmt.Errorf("%w: author or time of %v", ErrBroken, r.Key)
	}
	return nil
}

// check checks a row that comes after the row of revision last; last is 0 for the first row.
func (r *ChangeRow) check(h Header, last int64) error {
	w := Write{Op: Update, Key: r.Key, Replaces: r.Replaces, UID: r.UID, Encoding: r.Encoding, Value: r.Value, Expires: r.Expires}
	if r.Op == Create {
		w.Op = Delete // of which no value is checked
		w.Replaces = 1
	}
	switch err := w.Check(); {
	case err != nil:
		return fmt.Errorf("%w: change %d: %w", ErrBroken, r.Revision, err)
	case r.Op != Create && r.Op != Update && r.Op != Delete, (r.Op == Create) != (r.Replaces == 0), (r.Op == Create) != (r.Value == nil):
		return fmt.Errorf("%w: change %d is a %q that replaces revision %d", ErrBroken, r.Revision, r.Op, r.Replaces)
	case r.Revision <= last || r.Revision > h.Revision || r.Revision > max(last, h.Compacted)+1:
		return fmt.Errorf("%w: change %d follows on change %d; compacted up to %d, the last revision is %d",
			ErrBroken, r.Revision, last, h.Compacted, h.Revision)
	case r.Replaces >= r.Revision || r.Created <= 0 || r.Created > r.Revision:
		return fmt.Errorf("%w: change %d replaces revision %d, created at %d", ErrBroken, r.Revision, r.Replaces, r.Created)
	case r.Author != r.Author.Clean() || !isStorableTime(r.Time):
		return fmt.Errorf("%w: author or time of change %d", ErrBroken, r.Revision)
	}
	return nil
}

// isStorableTime reports whether both databases can store a time.
func isStorableTime(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1 && year <= 9999
}

// NextEpoch returns the revision at which a new epoch begins, after a loss of commits whose extent
// is not known. revision is the last one that is known to have been given.
//
// Commits that were lost may have been shown under later revisions, which must not be given again.
// So the gap is longer than what a failover or a copy of a database can lose. It has no fixed
// length, because the database may lose the beginning of an epoch too, and then begins another one
// at the same revision.
func NextEpoch(revision int64) int64 {
	const shortest, longest = 1_000_000, 1_000_000_000
	return revision + shortest + rand.Int64N(longest-shortest) //nolint:gosec // no secret
}
