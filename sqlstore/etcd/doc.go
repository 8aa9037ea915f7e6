// Package etcd reads and writes the snapshot files of etcd 3.5 to 3.7, which
// "etcdctl snapshot save" makes and "etcdutl snapshot restore" reads.
//
// A snapshot is etcd's bbolt database followed by the SHA-256 of it. The formats are
// those of etcd's server/storage/schema and server/storage/mvcc. The package knows keys,
// values, revisions and leases. It knows nothing of Kubernetes.
//
// # What is promised
//
//   - Open refuses a file that has no hash or a wrong one, and a file that is no database of
//     etcd. It never changes the file.
//   - Each yields the keys that exist at the snapshot's revision, each once, in the order
//     of the revisions that wrote them.
//   - A file that a Writer writes gets its name when Writer.Finish returns nil. It is then
//     complete and synced.
//
// # What the caller owes
//
// The caller closes a Snapshot, and finishes or closes a Writer. Neither is safe for
// concurrent use.
package etcd
