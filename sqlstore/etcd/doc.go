// Package etcd reads and writes the snapshot files of etcd 3.5 to 3.7, which "etcdctl snapshot
// save" makes and "etcdutl snapshot restore" reads, and reads the database of kine, which k3s uses
// in place of etcd. It knows keys, values, revisions and leases. It knows nothing of Kubernetes.
//
// # Snapshots of etcd
//
// A snapshot is etcd's bbolt database followed by the SHA-256 of it. The formats are
// those of etcd's server/storage/schema and server/storage/mvcc.
//
//   - Open refuses a file that has no hash or a wrong one, and a file that is no database of
//     etcd. It never changes the file.
//   - Snapshot.Each yields the keys that exist at the snapshot's revision, each once, in the order
//     of the revisions that wrote them.
//   - A file that a Writer writes gets its name when Writer.Finish returns nil. It is then
//     complete and synced.
//
// # kine's database
//
// The database is SQLite or PostgreSQL. The layout is that of kine's pkg/drivers/sqlite and
// pkg/drivers/pgsql. The table kine has a row for each change; the column id is the revision, and
// name the key. The row with the greatest id of a name is the current state of that key; it does
// not exist if the column deleted is 1. The column lease is a TTL in seconds, which kine counts
// from its own start.
//
//   - A KineDatabase reads everything in one transaction, which never writes: it shows the keys
//     at one revision even while kine writes.
//   - KineDatabase.Each yields the keys that exist, each once, in the order of the revisions that
//     wrote them.
//
// # What the caller owes
//
// The caller closes a Snapshot and a KineDatabase, and finishes or closes a Writer. None of them is
// safe for concurrent use.
package etcd
