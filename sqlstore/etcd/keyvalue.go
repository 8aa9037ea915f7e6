package etcd

import (
	"encoding/binary"
	"errors"
	"time"
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
