package snapshot

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"iter"
	"time"

	"byre/sqlstore"
)

// Digest sums up the rows of a snapshot, whatever order they come in. Two snapshots with
// equal digests have the same rows. A Digest is comparable.
type Digest struct {
	Objects, Changes int64
	// ObjectSum and ChangeSum are the sums of the rows' SHA-256.
	ObjectSum, ChangeSum Sum
}

// Sum is a sum of SHA-256 hashes, each taken as four numbers.
type Sum [4]uint64

func (s *Sum) add(h hash.Hash) {
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	for i := range s {
		s[i] += binary.BigEndian.Uint64(sum[8*i:])
	}
}

// String is the sum in hexadecimal digits.
func (s Sum) String() string { return fmt.Sprintf("%016x%016x%016x%016x", s[0], s[1], s[2], s[3]) }

// String is what an operator compares.
func (d Digest) String() string {
	return fmt.Sprintf("%d objects (%s), %d changes (%s)", d.Objects, d.ObjectSum, d.Changes, d.ChangeSum)
}

// Digested returns the snapshot and a digest of the rows that are read from it, which is
// complete when both sequences have been read to their ends, once.
func Digested(s sqlstore.Snapshot) (sqlstore.Snapshot, *Digest) {
	d := &Digest{}
	s.Objects = each(s.Objects, func(r *sqlstore.ObjectRow) {
		d.Objects++
		d.ObjectSum.add(hashObject(r))
	})
	s.Changes = each(s.Changes, func(r *sqlstore.ChangeRow) {
		d.Changes++
		d.ChangeSum.add(hashChange(r))
	})
	return s, d
}

// DigestOf reads a snapshot to its end.
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

// each calls see for each row that is read.
func each[T any](rows iter.Seq2[*T, error], see func(*T)) iter.Seq2[*T, error] {
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
	h.texts(r.UID, r.Form, r.User, r.Verb)
	h.numbers(r.Created, r.Revision)
	h.times(r.Time, r.Expires)
	h.value(r.Value)
	return h
}

func hashChange(r *sqlstore.ChangeRow) hash.Hash {
	h := fields{sha256.New()}
	h.key(r.Key)
	h.texts(string(r.Op), r.UID, r.Form, r.Author.User, r.Author.Verb, r.Author.AuditID)
	h.numbers(r.Revision, r.Replaces, r.Created)
	h.times(r.Time, r.Expires)
	h.value(r.Value)
	return h
}

// fields hashes fields so that no two rows have the same bytes: a length stands before
// each text.
type fields struct{ hash.Hash }

func (f fields) key(k sqlstore.Key) {
	f.texts(k.Group, k.Resource, k.Owner.String(), k.Namespace, k.Name)
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

// times are hashed as both databases keep them: in microseconds.
func (f fields) times(times ...time.Time) {
	for _, t := range times {
		f.numbers(t.UnixMicro())
	}
}
