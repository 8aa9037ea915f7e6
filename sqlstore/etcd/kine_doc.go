// Package kine reads the database of kine, which k3s uses in place of etcd. The database is
// SQLite or PostgreSQL.
//
// The layout is that of kine's pkg/drivers/sqlite and pkg/drivers/pgsql. The table kine has
// a row for each change; the column id is the revision, and name the key. The row with the
// greatest id of a name is the current state of that key; it does not exist if the column
// deleted is 1. The column lease is a TTL in seconds, which kine counts from its own start.
// The package knows nothing of Kubernetes.
//
// # What is promised
//
//   - A Database reads everything in one transaction, which never writes: it shows the keys
//     at one revision even while kine writes.
//   - Each yields the keys that exist, each once, in the order of the revisions that
//     wrote them.
//
// # What the caller owes
//
// The caller closes a Database. A Database is not safe for concurrent use.
package etcd
