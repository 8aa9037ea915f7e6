package snapshot

import (
	"fmt"
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
		return 0, &HistoryError{t.UTC().Format(time.RFC3339Nano), first.Format(time.RFC3339Nano), s.Time.Format(time.RFC3339Nano)}
	}
	return s.Revision, nil
}

// At returns the store as it was at an earlier revision, without history: its Objects are
// those of that revision, and its Revision and Compacted are the revision. Its Objects read
// both sequences of s. If the change that wrote an object is compacted, its author and time
// are not known: Author is empty then, and Time is s.Time. The Generation of an object that was
// changed later is not known either, and 0. At fails with a
// *HistoryError.
func At(s sqlstore.Snapshot, revision int64) (sqlstore.Snapshot, error) {
	if revision < s.Compacted || revision > s.Revision {
		return sqlstore.Snapshot{}, &HistoryError{
			fmt.Sprintf("revision %d", revision), fmt.Sprintf("revision %d", s.Compacted), fmt.Sprint(s.Revision),
		}
	}
	then := sqlstore.Snapshot{Header: s.Header, Changes: none}
	then.Revision, then.Compacted, then.ObjectCount = revision, revision, -1
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
	return then, nil
}

// none is a sequence without changes.
func none(func(*sqlstore.ChangeRow, error) bool) {}

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
				Form: row.Form, Expires: row.Expires, Value: row.Value,
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

// Restored returns the store that a restore makes of a snapshot: the same objects, without
// history, in a new epoch. Its revision is moved forward by bump; the caller chooses bump so
// that the result is beyond every revision that a client may have seen. All revisions before
// are compacted, so that a watch that continues from one of them ends with 410 and its client
// lists again. The record of the last backup says that there was none: it is of the database
// that the snapshot was made of.
func Restored(s sqlstore.Snapshot, bump int64, epoch string) sqlstore.Snapshot {
	s.Revision += bump
	s.Compacted, s.Epoch, s.Changes = s.Revision, epoch, none
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
