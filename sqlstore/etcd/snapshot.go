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
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"

	"byre/migrations"
)

// KeyValue is a key that exists, as etcd's mvccpb.KeyValue has it.
type KeyValue struct {
	Key   string
	Value []byte
	// Created is the revision that created the key, Revision the one that wrote Value.
	// 0 < Created <= Revision.
	Created  int64
	Revision int64
	// TTL is how long the key's lease lasts from now on; 0 means that it has no lease.
	TTL time.Duration
}

// Names of buckets and of keys in the bucket meta (etcd's server/storage/schema).
var (
	bucketKey   = []byte("key")
	bucketMeta  = []byte("meta")
	bucketLease = []byte("lease")
	// otherBuckets are the other buckets that an etcd server expects.
	otherBuckets = [][]byte{
		[]byte("alarm"), []byte("cluster"), []byte("members"), []byte("members_removed"),
		[]byte("auth"), []byte("authUsers"), []byte("authRoles"),
	}

	keyScheduledCompact = []byte("scheduledCompactRev")
	keyFinishedCompact  = []byte("finishedCompactRev")
	keyConsistentIndex  = []byte("consistent_index")
	keyTerm             = []byte("term")
	keyStorageVersion   = []byte("storageVersion")
)

// revisionKey is a key of the bucket "key": the revision of a transaction, the number of the
// change within that transaction, and whether the change is a deletion (etcd's
// mvcc.BucketKey).
type revisionKey struct {
	main, sub int64
	tombstone bool
}

const (
	revisionKeyLength = 8 + 1 + 8
	separator         = '_'
	tombstone         = 't'
)

var errRevisionKey = errors.New("a revision in the bucket \"key\" is malformed")

func parseRevisionKey(b []byte) (revisionKey, error) {
	isTombstone := len(b) == revisionKeyLength+1 && b[revisionKeyLength] == tombstone
	if len(b) != revisionKeyLength && !isTombstone || b[8] != separator {
		return revisionKey{}, errRevisionKey
	}
	p := revisionKey{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[9:])), isTombstone}
	if p.main < 0 || p.sub < 0 {
		return revisionKey{}, errRevisionKey
	}
	return p, nil
}

func (p revisionKey) bytes() []byte {
	b := make([]byte, 0, revisionKeyLength+1)
	b = binary.BigEndian.AppendUint64(b, uint64(p.main))
	b = append(b, separator)
	b = binary.BigEndian.AppendUint64(b, uint64(p.sub))
	if p.tombstone {
		b = append(b, tombstone)
	}
	return b
}

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
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum),
		errors.Is(err, bbolterrors.ErrVersionMismatch):
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
				return fmt.Errorf("%w: key %q has revisions %d and %d at %d", ErrNotEtcd, kv.Key, kv.CreateRevision, kv.ModRevision,
					p.main)
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

const (
	// writerBatch and writerBytes bound the keys in one transaction of bbolt, which keeps their values in memory twice.
	writerBatch, writerBytes = 5000, 32 << 20
	// leaseStep is the unit to which TTLs are rounded up, so that keys share leases. Each
	// lease costs etcd memory and time; kube-apiserver shares them too
	// (--lease-reuse-duration-seconds, 60 s).
	leaseStep = time.Minute
	// storageVersion is the first version of etcd that stores its storage version.
	storageVersion = "3.6.0"
)

// Writer writes a snapshot file.
type Writer struct {
	path, temporary string
	db              *bbolt.DB
	tx              *bbolt.Tx
	pending, bytes  int             // the keys in tx, and the bytes of their values
	leases          map[int64]int64 // TTL in seconds by ID
}

// Create begins the snapshot file at path. It fails with an error that matches fs.ErrExist
// if the file exists. The Writer writes to a temporary file in the same directory until
// Finish.
func Create(path string) (_ *Writer, err error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s: %w", path, fs.ErrExist)
		}
		return nil, err
	}
	// The same directory, so that Finish can link it. CreateTemp gives it mode 0600, because
	// snapshots hold Secrets.
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-")
	if err != nil {
		return nil, err
	}
	w := &Writer{path: path, temporary: file.Name(), leases: map[int64]int64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if err := file.Close(); err != nil {
		return nil, err
	}
	// Only Finish syncs: nobody needs a file that is not finished.
	w.db, err = bbolt.Open(w.temporary, 0o600,
		&bbolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	return w, w.begin()
}

func (w *Writer) begin() (err error) {
	w.pending, w.bytes = 0, 0
	if w.tx, err = w.db.Begin(true); err != nil {
		return err
	}
	for _, name := range append([][]byte{bucketKey, bucketMeta, bucketLease}, otherBuckets...) {
		if _, err := w.tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}

// Put writes a key. It refuses a second key of the same revision. In etcd, keys of one
// revision were written by one transaction; in byre, each revision is one change.
func (w *Writer) Put(kv KeyValue) error {
	entry := &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, CreateRevision: kv.Created, ModRevision: kv.Revision,
		// Version is how often the key was written. byre does not know that, and
		// Kubernetes does not use it. A key that was also updated was written at least
		// twice.
		Version: 1,
	}
	if kv.Revision > kv.Created {
		entry.Version = 2
	}
	if kv.TTL > 0 {
		entry.Lease = w.lease(kv.TTL)
	}
	value, err := proto.Marshal(entry)
	if err != nil {
		return err
	}
	keys, at := w.tx.Bucket(bucketKey), revisionKey{main: kv.Revision}.bytes()
	if keys.Get(at) != nil {
		return fmt.Errorf("two keys have the revision %d, one is %q", kv.Revision, kv.Key)
	}
	if err := keys.Put(at, value); err != nil {
		return err
	}
	w.pending, w.bytes = w.pending+1, w.bytes+len(value)
	if w.pending < writerBatch && w.bytes < writerBytes {
		return nil
	}
	if err := w.tx.Commit(); err != nil {
		return err
	}
	return w.begin()
}

// lease returns the ID of the lease for keys that expire after ttl, rounded up to leaseStep.
func (w *Writer) lease(ttl time.Duration) int64 {
	steps := int64((ttl + leaseStep - 1) / leaseStep)
	w.leases[steps] = steps * int64(leaseStep/time.Second)
	return steps
}

// Finish writes the leases, the metadata and the hash, and gives the file its name. revision
// is the last revision of the store: an etcd that is restored from the file continues after
// it, and the history up to it is compacted. Finish fails with an error that matches
// fs.ErrExist if a file of that name exists.
func (w *Writer) Finish(ctx context.Context, revision int64) error {
	if err := w.putLeasesAndMeta(revision); err != nil {
		return err
	}
	if err := w.tx.Commit(); err != nil {
		return err
	}
	w.tx = nil
	if err := w.db.Close(); err != nil {
		return err
	}
	w.db = nil
	if err := appendHash(ctx, w.temporary); err != nil {
		return err
	}
	// os.Link fails if another process has made the file meanwhile; os.Rename would
	// replace that file.
	if err := os.Link(w.temporary, w.path); err != nil {
		return err
	}
	return errors.Join(w.Close(), migrations.SyncDir(filepath.Dir(w.path)))
}

func (w *Writer) putLeasesAndMeta(revision int64) error {
	leases, meta := w.tx.Bucket(bucketLease), w.tx.Bucket(bucketMeta)
	for id, ttl := range w.leases {
		lease := &leasepb.Lease{ID: id, TTL: ttl}
		value, err := proto.Marshal(lease)
		if err != nil {
			return err
		}
		if err := leases.Put(binary.BigEndian.AppendUint64(nil, uint64(id)), value); err != nil {
			return err
		}
	}
	compacted := revisionKey{main: revision}.bytes()
	for _, entry := range []struct{ key, value []byte }{
		{keyScheduledCompact, compacted},
		{keyFinishedCompact, compacted},
		// "etcdutl snapshot restore" replaces both by those of the new cluster.
		{keyConsistentIndex, binary.BigEndian.AppendUint64(nil, 1)},
		{keyTerm, binary.BigEndian.AppendUint64(nil, 1)},
		{keyStorageVersion, []byte(storageVersion)},
	} {
		if err := meta.Put(entry.key, entry.value); err != nil {
			return err
		}
	}
	return nil
}

// Close removes the temporary file of a Writer that is not finished. After Finish it does
// nothing.
func (w *Writer) Close() error {
	var errs []error
	if w.tx != nil {
		errs = append(errs, w.tx.Rollback())
		w.tx = nil
	}
	if w.db != nil {
		errs = append(errs, w.db.Close())
		w.db = nil
	}
	if err := os.Remove(w.temporary); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// appendHash writes the SHA-256 of the file to its end and syncs it.
func appendHash(ctx context.Context, path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, &contextReader{ctx, file}); err != nil {
		return err
	}
	if _, err := file.Write(hash.Sum(nil)); err != nil {
		return err
	}
	return file.Sync()
}
