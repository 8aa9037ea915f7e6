// Package etcd reads and writes the snapshot files of etcd 3.5 and 3.6: what
// "etcdctl snapshot save" makes and "etcdutl snapshot restore" takes.
//
// A snapshot is etcd's bbolt database followed by the SHA-256 of it. The formats are
// those of etcd's server/storage/schema and server/storage/mvcc. The package knows keys,
// values, revisions and leases; it knows nothing of what Kubernetes keeps in them.
//
// # What is promised
//
//   - Open refuses a file whose hash is wrong, which has none, or which is no database
//     of etcd. It never changes the file.
//   - Each yields the keys that exist at the snapshot's revision, each once, in the order
//     of the revisions that wrote them.
//   - A file is under its name only once Writer.Finish has returned; it is then whole and
//     on disk.
//
// # What the caller owes
//
// Close for a Snapshot, Finish or Close for a Writer. Neither is safe for concurrent use.
package etcd
