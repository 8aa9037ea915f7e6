package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"

	"byre/migrations"
)

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
	w.db, err = bbolt.Open(w.temporary, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
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
