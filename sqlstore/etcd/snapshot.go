package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"
)

// Errors of Open.
var (
	// ErrNoHash means that the file has no hash at its end, as a database that was copied
	// from a member's directory.
	ErrNoHash = errors.New("the snapshot has no integrity hash")
	// ErrWrongHash means that the file differs from what etcd saved.
	ErrWrongHash = errors.New("the snapshot's integrity hash is wrong: the file is damaged, or was not copied whole")
	// ErrInUse means that another process, such as a running etcd, has locked the file.
	ErrInUse = errors.New("a running etcd has the file open")
	// ErrNotEtcd means that the file is no database of etcd, or a damaged one.
	ErrNotEtcd = errors.New("not a snapshot of etcd")
)

// lockTimeout is how long Open waits for another process to close the file.
const lockTimeout = time.Second

// Options of a Snapshot.
type Options struct {
	// SkipHashCheck accepts a file without a hash, and does not check one that is there,
	// as etcdutl's --skip-hash-check does.
	SkipHashCheck bool
}

// Snapshot is an open snapshot file.
type Snapshot struct {
	db       *bbolt.DB
	revision int64
	// live has the revisionKey of the last change of each key that exists, ascending.
	live []revisionKey
	ttls map[int64]time.Duration // by lease ID
}

// Open opens a snapshot, verifies its hash and finds the keys that exist.
func Open(ctx context.Context, path string, options Options) (_ *Snapshot, err error) {
	if err := verifyFile(ctx, path, options); err != nil {
		return nil, err
	}
	// ReadOnly, because bbolt otherwise opens the file for writing and may change it.
	db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, ErrInUse
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum), errors.Is(err, bbolterrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%w: %w", ErrNotEtcd, err)
	case err != nil:
		return nil, err
	}
	s := &Snapshot{db: db}
	if err := db.View(func(tx *bbolt.Tx) error { return s.load(ctx, tx, options) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// verifyFile compares the hash at the end of the file. The length of a bbolt database is a
// multiple of 512 bytes; so the length of the file tells whether there is a hash, as in
// etcdutl/snapshot/v3_snapshot.go.
func verifyFile(ctx context.Context, path string, options Options) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() == 0:
		return fmt.Errorf("%w: not a file, or empty", ErrNotEtcd)
	case options.SkipHashCheck:
		return nil
	case info.Size()%512 != sha256.Size:
		return ErrNoHash
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, &contextReader{ctx, io.LimitReader(file, info.Size()-sha256.Size)}); err != nil {
		return err
	}
	saved := make([]byte, sha256.Size)
	if _, err := io.ReadFull(file, saved); err != nil {
		return err
	}
	if !bytes.Equal(saved, hash.Sum(nil)) {
		return ErrWrongHash
	}
	return nil
}

// contextReader is a Reader that fails when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// load finds the revision of the snapshot, the keys that exist, and their leases.
func (s *Snapshot) load(ctx context.Context, tx *bbolt.Tx, options Options) error {
	if options.SkipHashCheck {
		if err := checkPages(tx); err != nil {
			return err
		}
	}
	keys, leases, meta := tx.Bucket(bucketKey), tx.Bucket(bucketLease), tx.Bucket(bucketMeta)
	if keys == nil || meta == nil {
		return ErrNotEtcd
	}
	for _, name := range [][]byte{keyFinishedCompact, keyScheduledCompact} {
		// If every key was deleted and compacted, only the compaction tells the revision.
		if b := meta.Get(name); len(b) >= revisionKeyLength {
			p, err := parseRevisionKey(b[:revisionKeyLength])
			if err != nil {
				return err
			}
			s.revision = max(s.revision, p.main)
		}
	}
	if err := s.loadKeys(ctx, keys); err != nil {
		return err
	}
	s.ttls = map[int64]time.Duration{}
	if leases == nil {
		return nil
	}
	return leases.ForEach(func(k, v []byte) error {
		var lease leasepb.Lease
		if err := proto.Unmarshal(v, &lease); err != nil || len(k) != 8 {
			return fmt.Errorf("lease %x: malformed: %w", k, err)
		}
		// The time counts from now on, as in a server that starts from the snapshot
		// (etcd's lease.initAndRecover).
		s.ttls[int64(binary.BigEndian.Uint64(k))] = time.Duration(max(remaining(&lease), 1)) * time.Second
		return nil
	})
}

// remaining returns how many seconds of a lease are left. etcd stores that only with
// checkpoints of leases turned on; otherwise the whole TTL is left.
func remaining(lease *leasepb.Lease) int64 {
	if lease.RemainingTTL > 0 {
		return lease.RemainingTTL
	}
	return lease.TTL
}

// checkPages looks for damage in a file whose hash is not checked. bbolt panics when it
// reads a damaged page.
func checkPages(tx *bbolt.Tx) error {
	info, err := os.Stat(tx.DB().Path())
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("%w: the file is shorter than its database", ErrNotEtcd)
	}
	// The loop reads all errors, because Check's goroutine ends only when they are received.
	var found error
	for err := range tx.Check() {
		if found == nil {
			found = fmt.Errorf("%w: %w", ErrNotEtcd, err)
		}
	}
	return found
}

// loadKeys finds the last change of each key, and keeps those that are no deletions.
func (s *Snapshot) loadKeys(ctx context.Context, keys *bbolt.Bucket) error {
	last := map[string]revisionKey{}
	err := keys.ForEach(func(k, v []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := parseRevisionKey(k)
		if err != nil {
			return err
		}
		s.revision = max(s.revision, p.main)
		kv, err := parseKeyValue(v)
		switch {
		case err != nil:
			return err
		case len(kv.Key) == 0: // etcdutl's --bump-revision
		case p.tombstone:
			delete(last, string(kv.Key))
		default:
			last[string(kv.Key)] = p
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.live = make([]revisionKey, 0, len(last))
	for _, p := range last {
		s.live = append(s.live, p)
	}
	slices.SortFunc(s.live, func(a, b revisionKey) int {
		return cmp.Or(cmp.Compare(a.main, b.main), cmp.Compare(a.sub, b.sub))
	})
	return nil
}

func parseKeyValue(v []byte) (*mvccpb.KeyValue, error) {
	kv := &mvccpb.KeyValue{}
	if err := proto.Unmarshal(v, kv); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotEtcd, err)
	}
	return kv, nil
}

// Revision returns the last revision of etcd.
func (s *Snapshot) Revision() int64 { return s.revision }

// Len returns the number of keys that exist.
func (s *Snapshot) Len() int { return len(s.live) }

// Each calls yield for each key that exists, in the order of their revisions. It stops with
// the first error of yield. yield must not keep or change the Value.
func (s *Snapshot) Each(ctx context.Context, yield func(KeyValue) error) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		keys := tx.Bucket(bucketKey)
		for _, p := range s.live {
			if err := ctx.Err(); err != nil {
				return err
			}
			kv, err := parseKeyValue(keys.Get(p.bytes()))
			if err != nil {
				return err
			}
			if kv.ModRevision != p.main || kv.CreateRevision < 1 || kv.CreateRevision > kv.ModRevision {
				return fmt.Errorf("%w: key %q has revisions %d and %d at %d", ErrNotEtcd, kv.Key, kv.CreateRevision, kv.ModRevision, p.main)
			}
			// A key whose lease is not in the snapshot gets no TTL. etcd deletes the keys
			// of a lease with the lease, so that there is no such key in a sound file.
			if err := yield(KeyValue{
				Key: string(kv.Key), Value: kv.Value, Created: kv.CreateRevision, Revision: kv.ModRevision, TTL: s.ttls[kv.Lease],
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Close closes the file.
func (s *Snapshot) Close() error { return s.db.Close() }
