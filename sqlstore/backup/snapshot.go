package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"iter"
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
		if r.CompleteAfter == h.CompleteAfter && h.CompleteAfter > 0 {
			last = append(last, of.String())
		}
	}
	if len(last) == 1 {
		from += " (older changes of " + last[0] + " are deleted)"
	}
	return &HistoryError{wanted, from, to}
}

// RevisionAt returns the last revision of the store at a time: that of the last change before the first one
// that was made later. It reads Changes. It fails with a *HistoryError and with the errors of
// Changes.
func RevisionAt(s sqlstore.Snapshot, t time.Time) (int64, error) {
	first := s.Time // without changes the history begins and ends at the time of the snapshot
	last := s.CompleteAfter
	for row, err := range s.Changes {
		switch {
		case err != nil:
			return 0, err
		case row.Revision <= s.CompleteAfter:
			continue
		case last == s.CompleteAfter:
			first = row.Time
		}
		if row.Time.After(t) {
			if last == s.CompleteAfter {
				break
			}
			return last, nil
		}
		last = row.Revision
	}
	if t.Before(first) || t.After(s.Time) {
		return 0, outside(&s.Header, t.UTC().Format(time.RFC3339Nano), first.Format(time.RFC3339Nano),
			s.Time.Format(time.RFC3339Nano))
	}
	return s.Revision, nil
}

// At returns the store as it was at an earlier revision, with its history up to then. Its Objects
// read both sequences of s. If the change that wrote an object is compacted, its author and time
// are not known: Author is empty then, and Time is s.Time. The Generation of an object that was
// changed later is not known either, and 0. At fails with a
// *HistoryError.
func At(s sqlstore.Snapshot, revision int64) (sqlstore.Snapshot, error) {
	if revision < s.CompleteAfter || revision > s.Revision {
		return sqlstore.Snapshot{},
			outside(&s.Header, fmt.Sprintf("revision %d", revision), fmt.Sprintf("revision %d", s.CompleteAfter),
				fmt.Sprint(s.Revision))
	}
	then := sqlstore.Snapshot{Header: s.Header}
	then.Revision, then.ObjectCount = revision, -1
	then.Compacted, then.Retained = min(s.Compacted, revision), maps.Clone(s.Retained)
	for of, r := range then.Retained {
		r.ResumableAfter = min(r.ResumableAfter, revision)
		then.Retained[of] = r
	}
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
// watch of any resource that continues from one of them ends with 410 and its client lists again. The past is
// left, in the rows of Changes up to Compacted, with the revisions that it had: each CompleteAfter stays, because Load
// stores all of these rows. The history has
// become older since the snapshot: RetainedFor grows by as much, so that the first server does not
// delete it at once.
func Restored(s sqlstore.Snapshot, bump int64, epoch string, now time.Time) sqlstore.Snapshot {
	s.Revision += bump
	s.Compacted, s.Epoch = s.Revision, epoch
	retained := maps.Clone(s.Retained)
	for of, r := range retained {
		r.ResumableAfter = s.Compacted
		if older := r.RetainedFor + now.Sub(s.Time); r.RetainedFor > 0 && older > r.RetainedFor {
			r.RetainedFor = older.Truncate(time.Second)
		}
		retained[of] = r
	}
	s.Retained = retained
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

// Digest has the numbers and the hashes of the rows of a snapshot. The order of the rows does
// not matter. Two snapshots with equal digests have the same rows.
type Digest struct {
	Objects, Changes int64
	// ObjectSum and ChangeSum are the sums of the SHA-256 hashes of all rows.
	ObjectSum, ChangeSum Sum
}

// Sum is a sum of SHA-256 hashes. Each hash is added as four numbers, modulo 2^64.
type Sum [4]uint64

func (s *Sum) add(h hash.Hash) {
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	for i := range s {
		s[i] += binary.BigEndian.Uint64(sum[8*i:])
	}
}

// String returns the sum in hexadecimal digits.
func (s Sum) String() string { return fmt.Sprintf("%016x%016x%016x%016x", s[0], s[1], s[2], s[3]) }

// String returns a line that an operator can compare with that of another store.
func (d Digest) String() string {
	return fmt.Sprintf("%d objects (%s), %d changes (%s)", d.Objects, d.ObjectSum, d.Changes, d.ChangeSum)
}

// Digested returns the snapshot and a digest of the rows that the caller reads from it. The
// digest is complete when the caller has read each sequence once, to its end.
func Digested(s sqlstore.Snapshot) (sqlstore.Snapshot, *Digest) {
	d := &Digest{}
	s.Objects = observe(s.Objects, func(r *sqlstore.ObjectRow) {
		d.Objects++
		d.ObjectSum.add(hashObject(r))
	})
	s.Changes = observe(s.Changes, func(r *sqlstore.ChangeRow) {
		d.Changes++
		d.ChangeSum.add(hashChange(r))
	})
	return s, d
}

// DigestOf reads a snapshot to its end and returns its digest. It fails with
// sqlstore.ErrBroken if the snapshot is broken, and with the errors of its sequences.
func DigestOf(s sqlstore.Snapshot) (Digest, error) {
	s, d := Digested(s.Checked())
	for _, err := range s.Objects {
		if err != nil {
			return Digest{}, err
		}
	}
	for _, err := range s.Changes {
		if err != nil {
			return Digest{}, err
		}
	}
	return *d, nil
}

// observe returns the rows, and calls see with each before it yields it.
func observe[T any](rows iter.Seq2[*T, error], see func(*T)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for row, err := range rows {
			if err == nil {
				see(row)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func hashObject(r *sqlstore.ObjectRow) hash.Hash {
	h := fields{sha256.New()}
	h.key(r.Key)
	h.texts(r.UID, r.Encoding)
	h.author(r.Author)
	h.numbers(r.Created, r.Revision, r.Generation)
	h.times(r.Time, r.Expires)
	h.value(r.Value)
	return h
}

func hashChange(r *sqlstore.ChangeRow) hash.Hash {
	h := fields{sha256.New()}
	h.key(r.Key)
	h.texts(string(r.Op), r.UID, r.Encoding)
	h.author(r.Author)
	h.numbers(r.Revision, r.Replaces, r.Created)
	h.times(r.Time, r.Expires)
	h.value(r.Value)
	return h
}

// fields hashes the fields of a row. It hashes the length of a text before the text, so that
// different rows never hash the same bytes.
type fields struct{ hash.Hash }

func (f fields) key(k sqlstore.Key) {
	f.texts(k.Group, k.Resource, k.Owner.String(), k.Namespace, k.Name)
}

func (f fields) author(a sqlstore.Author) {
	f.texts(a.User, a.RealUser, a.Verb, a.Subresource, a.Manager, a.AuditID)
}

func (f fields) texts(texts ...string) {
	for _, text := range texts {
		f.value([]byte(text))
	}
}

func (f fields) value(value []byte) {
	f.numbers(int64(len(value)))
	f.Write(value)
}

func (f fields) numbers(numbers ...int64) {
	for _, n := range numbers {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(n))
		f.Write(b[:])
	}
}

// times hashes times in microseconds, the precision that both databases store.
func (f fields) times(times ...time.Time) {
	for _, t := range times {
		f.numbers(t.UnixMicro())
	}
}
