package backup

import (
	"fmt"
	"maps"
	"time"
	"unique"

	"byre/sqlstore"
)

// HistoryError means that the history of a snapshot does not include a revision or time.
type HistoryError struct {
	// Wanted is that revision or time, From and To are the first and the last one that
	// the history includes.
	Wanted, From, To string
}

// Error implements error.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("%s is not within the history, which reaches from %s to %s", e.Wanted, e.From, e.To)
}

// outside returns a HistoryError. It names the resource whose history begins last, where only one does: that of the
// others may reach back further.
func outside(h *sqlstore.Header, wanted, from, to string) error {
	var last []string
	for of, r := range h.Retained {
		if r.Compacted == h.Compacted && h.Compacted > 0 {
			last = append(last, of.String())
		}
	}
	if len(last) == 1 {
		from += " (older changes of " + last[0] + " are deleted)"
	}
	return &HistoryError{wanted, from, to}
}

// RevisionAt returns the last revision of the store at a time: the one before the first change
// that was made later. It reads Changes. It fails with a *HistoryError and with the errors of
// Changes.
func RevisionAt(s sqlstore.Snapshot, t time.Time) (int64, error) {
	first := s.Time // without changes the history begins and ends at the time of the snapshot
	for row, err := range s.Changes {
		switch {
		case err != nil:
			return 0, err
		case row.Revision <= s.Compacted:
			continue
		case row.Revision == s.Compacted+1:
			first = row.Time
		}
		if row.Time.After(t) {
			if row.Revision == s.Compacted+1 {
				break
			}
			return row.Revision - 1, nil
		}
	}
	if t.Before(first) || t.After(s.Time) {
		return 0, outside(&s.Header, t.UTC().Format(time.RFC3339Nano), first.Format(time.RFC3339Nano), s.Time.Format(time.RFC3339Nano))
	}
	return s.Revision, nil
}

// At returns the store as it was at an earlier revision, with its history up to then. Its Objects
// read both sequences of s. If the change that wrote an object is compacted, its author and time
// are not known: Author is empty then, and Time is s.Time. The Generation of an object that was
// changed later is not known either, and 0. At fails with a
// *HistoryError.
func At(s sqlstore.Snapshot, revision int64) (sqlstore.Snapshot, error) {
	if revision < s.Compacted || revision > s.Revision {
		return sqlstore.Snapshot{}, outside(&s.Header, fmt.Sprintf("revision %d", revision), fmt.Sprintf("revision %d", s.Compacted), fmt.Sprint(s.Revision))
	}
	then := sqlstore.Snapshot{Header: s.Header}
	then.Revision, then.ObjectCount = revision, -1
	then.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
		for row, err := range s.Objects {
			if err == nil && row.Revision > revision {
				continue
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
		undo(s, revision, yield)
	}
	then.Changes = func(yield func(*sqlstore.ChangeRow, error) bool) {
		for row, err := range s.Changes {
			if err == nil && row.Revision > revision || !yield(row, err) {
				return
			}
		}
	}
	return then, nil
}

// author has the author and the time of a change.
type author struct {
	time time.Time
	unique.Handle[sqlstore.Author]
}

// undo yields the objects that were current at a revision and were replaced or deleted later.
// For each of them there is exactly one change that was made after the revision and replaces a
// state that was written up to the revision; the row of that change has the state.
func undo(s sqlstore.Snapshot, revision int64, yield func(*sqlstore.ObjectRow, error) bool) {
	// authors has, by revision, the authors of the states that are current at the change
	// being read and were written within the history.
	authors := make(map[int64]author)
	for row, err := range s.Changes {
		switch {
		case err != nil:
			yield(nil, err)
			return
		case row.Revision <= revision:
			delete(authors, row.Replaces)
			if row.Op != sqlstore.Delete {
				a := row.Author
				a.AuditID = ""
				authors[row.Revision] = author{row.Time, unique.Make(a)}
			}
			continue
		case row.Replaces == 0 || row.Replaces > revision:
			continue
		}
		object := &sqlstore.ObjectRow{
			Record: sqlstore.Record{
				Key: row.Key, UID: row.UID, Created: row.Created, Revision: row.Replaces,
				Encoding: row.Encoding, Expires: row.Expires, Value: row.Value,
			},
			Time: s.Time,
		}
		if a, ok := authors[row.Replaces]; ok {
			object.Time, object.Author = a.time, a.Value()
		}
		if !yield(object, nil) {
			return
		}
	}
}

// Restored returns the store that a restore makes of a snapshot: the same objects and history, in
// a new epoch. Its revision is moved forward by bump; the caller chooses bump so that the result is
// beyond every revision that a client may have seen. All revisions before are compacted, so that a
// watch of any resource that continues from one of them ends with 410 and its client lists again: the history is
// left for SQL, in the rows of Changes up to Compacted, with the revisions that it had. It has
// become older since the snapshot: RetainedFor grows by as much, so that the first server does not
// delete it at once. The record
// of the last backup says that there was none: it is of the database that the snapshot was made of.
func Restored(s sqlstore.Snapshot, bump int64, epoch string, now time.Time) sqlstore.Snapshot {
	s.Revision += bump
	s.Compacted, s.Epoch = s.Revision, epoch
	retained := maps.Clone(s.Retained)
	for of, r := range retained {
		r.Compacted = s.Compacted
		if older := r.RetainedFor + now.Sub(s.Time); r.RetainedFor > 0 && older > r.RetainedFor {
			r.RetainedFor = older.Truncate(time.Second)
		}
		retained[of] = r
	}
	s.Retained = retained
	objects := s.Objects
	s.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
		for row, err := range objects {
			if err == nil && row.Key == sqlstore.LastBackupKey {
				none := *row
				none.Value = sqlstore.NoBackup()
				row = &none
			}
			if !yield(row, err) {
				return
			}
		}
	}
	return s
}

// EmptyError means that a snapshot has no objects.
type EmptyError struct{ sqlstore.Header }

// Error implements error.
func (e *EmptyError) Error() string {
	return fmt.Sprintf("there are no objects at revision %d", e.Revision)
}

// NotEmpty returns the snapshot with Objects that fail with an *EmptyError if there are none, so that
// no database is loaded with nothing.
func NotEmpty(s sqlstore.Snapshot) sqlstore.Snapshot {
	header, objects := s.Header, s.Objects
	s.Objects = func(yield func(*sqlstore.ObjectRow, error) bool) {
		isEmpty := true
		for row, err := range objects {
			isEmpty = false
			if !yield(row, err) {
				return
			}
		}
		if isEmpty {
			yield(nil, &EmptyError{header})
		}
	}
	return s
}
