// Package replication copies the SQLite database of a process, while it is written, to one or
// two places: directories or S3 buckets. Restore makes a database of such a copy, and a Follower keeps one
// while it grows.
//
// Litestream does the work, as a library: its DB turns the write-ahead log into LTX files, runs
// the checkpoints, and makes snapshots; its Compactor merges files and deletes old ones; its
// Replica restores. This package decides when, and for each destination from where.
//
// # Folders
//
// Every attachment of a Replicator to the database starts a new folder in each destination. A
// folder begins with a snapshot of the whole database, and then has each change as an LTX file.
// Its name is the time at which it began, so that the names sort by time.
//
// Invariant: one attachment of one process writes to a folder, and no other ever does. So a
// database that was replaced, or a second machine, can't mix its changes into those of another
// one. A COMMIT that fails ends the attachment, because its frames may be captured, and SQLite
// overwrites them. A destination that misses changes, because it was away for longer than the backlog
// reaches, begins a new folder too, and one whose files another program has deleted: a copier lists them
// every ten minutes.
//
// # What is promised
//
// A commit is at every destination that answers within about a second, and when Close returns
// nil. A destination that does not answer never holds up a commit, nor another destination, unless Sync
// is set: then AwaitCopy, after each commit, waits for it.
// What waits for it takes up the backlog at most: 256 MiB, or the size of the database if that
// is more; half of what is free on a small disk. Its first file has the whole database, and folders begin with it.
// Another copy is beside the backlog while a folder begins later, and once a day.
//
// # What the caller owes
//
// The driver calls Open before it opens the database, Committed after each commit, Dropped after a
// COMMIT that failed, and Run. While Attached reports true, it runs no checkpoint, because Litestream
// does. It calls Close after it has closed its own connections: then the last synchronization has everything, and closing Litestream's
// descriptor of the file releases no lock that is needed. A process that does not replicate calls
// Forget.
package replication
