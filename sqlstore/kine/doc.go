// Package kine reads the database of kine, in which k3s keeps what others keep in etcd:
// SQLite or PostgreSQL.
//
// The layout is that of kine's pkg/drivers/sqlite and pkg/drivers/pgsql: the table kine has
// a row for each change, whose id is the revision. The row with the greatest id of a name
// is what the key is now; deleted marks one that deletes. lease is a TTL in seconds,
// which kine counts from its start. The package knows nothing of what Kubernetes keeps in
// the values.
//
// # What is promised
//
//   - Everything is read in one transaction that never writes: all of one revision,
//     though kine may run beside it.
//   - Each yields the keys that exist, each once, in the order of the revisions that
//     wrote them.
//
// # What the caller owes
//
// Close. A Database is not safe for concurrent use.
package kine
