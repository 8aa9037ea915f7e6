package snapshot

import (
	"fmt"
	"time"
	"unique"

	"byre/sqlstore"
)

// HistoryError means that a snapshot can't be taken back to a point: its history does
// not reach there.
type HistoryError struct {
	// Wanted is the point, From and To between which points it may be.
	Wanted, From, To string
}

// Error implements error.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("%s is not within the history, which reaches from %s to %s", e.Wanted, e.From, e.To)
}

// RevisionAt is the last revision that the store had given at a time: that before the
// first change made later. It reads Changes. The errors are *HistoryError and those of
// the sequence.
func RevisionAt(s sqlstore.Snapshot, t time.Time) (int64, error) {
	first := s.Time // where there is no history, it begins and ends with the snapshot
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

// At is the store as it was at an earlier revision, without history before that: its
// Objects are those of then, its Revision and Compacted are the revision. It reads both
// sequences of s for its own Objects. Who wrote an object, and when, is not known where
// that change is compacted: User and Verb are empty then, and Time is s.Time.
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

// none yields nothing.
func none(func(*sqlstore.ChangeRow, error) bool) {}

// author says who wrote a revision, and when.
type author struct {
	time       time.Time
	user, verb unique.Handle[string]
}

// undo yields the objects that were current at a revision and were replaced or deleted
// later. For each of them there is one change that bridges the revision: it was made
// later and replaces what was written up to then.
func undo(s sqlstore.Snapshot, revision int64, yield func(*sqlstore.ObjectRow, error) bool) {
	// authors are those of what was current at the change that is read, within the
	// history.
	authors := make(map[int64]author)
	for row, err := range s.Changes {
		switch {
		case err != nil:
			yield(nil, err)
			return
		case row.Revision <= revision:
			delete(authors, row.Replaces)
			if row.Op != sqlstore.Delete {
				authors[row.Revision] = author{row.Time, unique.Make(row.Author.User), unique.Make(row.Author.Verb)}
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
			object.Time, object.User, object.Verb = a.time, a.user.Value(), a.verb.Value()
		}
		if !yield(object, nil) {
			return
		}
	}
}

// Restored is the store that a restore makes of a snapshot: it goes on from the revision
// moved forward by bump, which must lie beyond every one that a client may have seen, in
// a new epoch. All before it is compacted, so that every watch that goes on from before
// ends with 410 and its client lists again. There is no history.
func Restored(s sqlstore.Snapshot, bump int64, epoch string) sqlstore.Snapshot {
	s.Revision += bump
	s.Compacted, s.Epoch, s.Changes = s.Revision, epoch, none
	return s
}
