package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
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
	// up to Header.Revision. Of a resource they are complete after its CompleteAfter; see Driver.DeleteHistory.
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
	// CompleteAfter is the greatest History.CompleteAfter, and that of the resources that have neither objects nor changes.
	CompleteAfter int64
	// Time is the database's clock when the snapshot was taken.
	Time time.Time
	// Cluster names the cluster whose objects the store has, if the caller of ReadSnapshot sets it. Load does not read it.
	Cluster string
	// ObjectCount is the number of Objects; negative if it is not known.
	ObjectCount int64
	// Retained has the resources whose history ends elsewhere than at Compacted and CompleteAfter, and those of which is
	// known for how long it is kept.
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
	ResumableAfter int64
	CompleteAfter  int64
	RetainedFor    time.Duration
}

// RetainedOf returns the Retained of a resource.
func (h *Header) RetainedOf(of Resource) Retained {
	if r, ok := h.Retained[of]; ok {
		return r
	}
	return Retained{ResumableAfter: h.Compacted, CompleteAfter: h.CompleteAfter}
}

// SetRetained sets Retained.
func (h *Header) SetRetained(histories []History) {
	h.Retained = make(map[Resource]Retained)
	for _, of := range histories {
		if r := (Retained{of.ResumableAfter, of.CompleteAfter, of.RetainedFor}); r != h.RetainedOf(of.Resource) {
			h.Retained[of.Resource] = r
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
	Encoding string    `json:"encoding,omitempty"`
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
	if h.CompleteAfter < 0 || h.CompleteAfter > h.Compacted || h.Compacted > h.Revision || h.Revision == math.MaxInt64 ||
		h.Epoch == "" || !storable(h.Epoch) {
		return fmt.Errorf("%w: revision %d, compacted %d, complete after %d, epoch %q", ErrBroken, h.Revision, h.Compacted,
			h.CompleteAfter, h.Epoch)
	}
	for of, r := range h.Retained {
		if r.CompleteAfter < 0 || r.CompleteAfter > min(r.ResumableAfter, h.CompleteAfter) || r.ResumableAfter > h.Compacted {
			return fmt.Errorf("%w: the history of %v is resumable after %d and complete after %d, the store's after %d and %d",
				ErrBroken, of, r.ResumableAfter, r.CompleteAfter, h.Compacted, h.CompleteAfter)
		}
	}
	return nil
}

func (r *ObjectRow) check(h Header) error {
	w := Write{Op: Update, Key: r.Key, Replaces: r.Revision, UID: r.UID, Encoding: r.Encoding, Value: r.Value,
		Expires: r.Expires}
	switch err := w.Check(); {
	case err != nil:
		return fmt.Errorf("%w: revision %d: %w", ErrBroken, r.Revision, err)
	case r.Created <= 0 || r.Created > r.Revision || r.Revision > h.Revision:
		return fmt.Errorf("%w: %v has revision %d, created at %d; the last revision is %d", ErrBroken, r.Key, r.Revision,
			r.Created, h.Revision)
	case r.Author != r.Author.Clean() || !isStorableTime(r.Time):
		return fmt.Errorf("%w: author or time of %v", ErrBroken, r.Key)
	}
	return nil
}

// check checks a row that comes after the row of revision last; last is 0 for the first row.
func (r *ChangeRow) check(h Header, last int64) error {
	w := Write{Op: Update, Key: r.Key, Replaces: r.Replaces, UID: r.UID, Encoding: r.Encoding, Value: r.Value,
		Expires: r.Expires}
	if r.Op == Create {
		w.Op = Delete // of which no value is checked
		w.Replaces = 1
	}
	switch err := w.Check(); {
	case err != nil:
		return fmt.Errorf("%w: change %d: %w", ErrBroken, r.Revision, err)
	case r.Op != Create && r.Op != Update && r.Op != Delete, (r.Op == Create) != (r.Replaces == 0),
		(r.Op == Create) != (r.Value == nil):
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

// DamagedRow is the error of one row, or of rows beside each other, that can't be read. A
// sequence of a Snapshot that yields it goes on after it.
type DamagedRow struct {
	Finding
	// Key is the row's key; zero if nothing that can be read tells it.
	Key Key
	// Revision is that of a change, or of the last one of several; 0 for an object.
	Revision int64
}

// Error implements error.
func (e *DamagedRow) Error() string { return e.String() }

// Salvage returns what another store can hold of a snapshot whose sequences may yield DamagedRows.
// It leaves out those and the rows that no store can have, and calls report for each. Where a
// change is left out or is missing, it leaves out the history up to it. It reads both sequences
// before it returns.
func (s Snapshot) Salvage(report func(Finding)) (Snapshot, error) {
	header, objects, changes := s.Header, s.Objects, s.Changes
	soundObjects := func(skip func(*DamagedRow)) iter.Seq2[*ObjectRow, error] {
		return soundRows(objects, skip, func(r *ObjectRow) *DamagedRow {
			if err := r.check(header); err != nil {
				return &DamagedRow{Finding{"objects: " + r.Display(), err.Error()}, r.Key, 0}
			}
			return nil
		})
	}
	soundChanges := func(skip func(*DamagedRow)) iter.Seq2[*ChangeRow, error] {
		return soundRows(changes, skip, func(r *ChangeRow) *DamagedRow {
			if err := r.check(header, r.Revision-1); err != nil {
				return &DamagedRow{Finding{fmt.Sprintf("changes: revision %d, %s", r.Revision, r.Display()), err.Error()}, r.Key,
					r.Revision}
			}
			return nil
		})
	}
	s.ObjectCount = 0
	for _, err := range soundObjects(func(d *DamagedRow) { report(d.Finding) }) {
		if err != nil {
			return Snapshot{}, err
		}
		s.ObjectCount++
	}
	last, hole := s.Compacted, int64(0) // hole is the last revision whose change is left out or missing
	skip := func(d *DamagedRow) {
		report(d.Finding)
		hole = max(hole, d.Revision)
	}
	for row, err := range soundChanges(skip) {
		if err != nil {
			return Snapshot{}, err
		}
		if row.Revision > last+1 {
			hole = row.Revision - 1
		}
		last = max(last, row.Revision)
	}
	if last < s.Revision {
		hole = s.Revision
	}
	s.Objects, s.Changes = soundObjects(ignore), soundChanges(ignore)
	if hole > 0 {
		report(Finding{"changes", fmt.Sprintf("the history up to revision %d, because not all of it is there", hole)})
		s.Compacted, s.CompleteAfter, s.Retained = max(s.Compacted, hole), max(s.CompleteAfter, hole), nil
		s.Changes = after(s.CompleteAfter, s.Changes)
	}
	return s, nil
}

func ignore(*DamagedRow) {}

// soundRows yields the rows that can be read and in which check finds nothing, and calls skip
// for the others.
func soundRows[T any](
	rows iter.Seq2[*T, error], skip func(*DamagedRow), check func(*T) *DamagedRow,
) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for row, err := range rows {
			var damaged *DamagedRow
			if err == nil {
				damaged = check(row)
			} else {
				errors.As(err, &damaged)
			}
			switch {
			case damaged != nil:
				skip(damaged)
			case !yield(row, err) || err != nil:
				return
			}
		}
	}
}

// after yields the changes after a revision.
func after(revision int64, changes iter.Seq2[*ChangeRow, error]) iter.Seq2[*ChangeRow, error] {
	return func(yield func(*ChangeRow, error) bool) {
		for row, err := range changes {
			if err == nil && row.Revision <= revision {
				continue
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// Finding is one thing that an integrity check has found wrong.
type Finding struct {
	// Row names the table and the row, such as "objects: pods default/web", or else the
	// part of the database that is wrong.
	Row string `json:"row"`
	// Reason says what is wrong with the row.
	Reason string `json:"reason"`
}

// String returns one line for an operator.
func (f Finding) String() string { return f.Row + ": " + f.Reason }

// Display returns the key as operators read it: "deployments.apps default/web".
func (k Key) Display() string {
	resource, name := k.Resource, k.Name
	if k.Group != "" {
		resource += "." + k.Group
	}
	if k.Owner != BuiltIn {
		resource += fmt.Sprintf(" (%v)", k.Owner)
	}
	if k.Namespace != "" {
		name = k.Namespace + "/" + name
	}
	return resource + " " + name
}

// Numbering gives ids to the resources of a snapshot, for a driver that loads its rows.
type Numbering struct {
	header *Header
	ids    map[Resource]int64
}

// NewNumbering returns a Numbering of a snapshot with a header. The resources of Header.Retained have ids already,
// those without objects and changes too.
func NewNumbering(h *Header) *Numbering {
	n := &Numbering{header: h, ids: make(map[Resource]int64)}
	for _, of := range slices.SortedFunc(maps.Keys(h.Retained), Resource.Compare) {
		n.ID(of)
	}
	return n
}

// ID returns the id of a resource: 1, 2 and so on, in the order of the first calls.
func (n *Numbering) ID(of Resource) int64 {
	id, ok := n.ids[of]
	if !ok {
		id = int64(len(n.ids) + 1)
		n.ids[of] = id
	}
	return id
}

// All calls yield with each resource, its id and its Retained.
func (n *Numbering) All(yield func(of Resource, id int64, r Retained) error) error {
	for of, id := range n.ids {
		if err := yield(of, id, n.header.RetainedOf(of)); err != nil {
			return err
		}
	}
	return nil
}

// LastBackup is the record, beside the data of a database, of the last backup that was made of it. No backup has it.
type LastBackup struct {
	// Time is when the backup was complete, by the clock of the process that made it.
	Time time.Time `json:"time"`
	// Revision is the revision of the snapshot in the backup.
	Revision int64 `json:"revision"`
	// Location is the name that the operator gave the backup's file. It has no secrets.
	Location string `json:"location"`
}

// Encode returns the JSON that drivers store, in which the time has whole seconds.
func (b LastBackup) Encode() ([]byte, error) {
	text, err := json.Marshal(LastBackup{b.Time.UTC().Truncate(time.Second), b.Revision, b.Location})
	if err != nil {
		return nil, fmt.Errorf("last backup: %w", err)
	}
	return text, nil
}

// DecodeLastBackup decodes a text of Encode.
func DecodeLastBackup(text []byte) (b LastBackup, err error) {
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("last backup: %w", err)
	}
	return b, nil
}

// Fork is the record, in a database, that its objects are those that another store had at a moment,
// and that it is not a cluster of its own yet: it tells a server to change and call nothing by itself.
type Fork struct {
	// Revision and Time are the moment, in the other store.
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time"`
}

// ForkKey is the key of the record, which no API serves.
var ForkKey = Key{Group: "byre", Resource: "foundations", Owner: BuiltIn, Name: "fork"}

// forkRecord is the stored form of a Fork: JSON with apiVersion and kind.
type forkRecord struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Fork
}

// Record returns the record at a revision of the new store.
func (f Fork) Record(revision int64) (Record, error) {
	value, err := json.Marshal(forkRecord{"byre/1", "Fork", f})
	if err != nil {
		return Record{}, fmt.Errorf("fork: %w", err)
	}
	return Record{Key: ForkKey, Created: revision, Revision: revision, Encoding: "byre/1", Value: value}, nil
}

// ReadFork reads the record by the Get of a Driver. It returns nil if the database is no fork.
func ReadFork(ctx context.Context, get func(context.Context, Key) (Record, int64, error)) (*Fork, error) {
	record, _, err := get(ctx, ForkKey)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	var stored forkRecord
	if err == nil {
		err = json.Unmarshal(record.Value, &stored)
	}
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return &stored.Fork, nil
}
