package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"iter"
	"time"

	"byre/sqlstore"
)

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
