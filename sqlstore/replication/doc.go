// Package replication copies the SQLite database of a process, while it is written, to one or
// two places: directories or S3 buckets. Restore makes a database of such a copy, and a Follower
// keeps one while it grows. A Lease in a bucket lets one process at a time serve the database, and
// RunStandby has one of two processes serve it, and the other one take over.
//
// Litestream does the copying, as a library: its DB turns the write-ahead log into LTX files, runs
// the checkpoints, and makes snapshots; its Compactor merges files and deletes old ones; its
// Replica restores. This package decides when, and for each destination from where.
//
// # Folders
//
// A folder begins with a snapshot of the whole database, and then has each change as an LTX file.
// Its name is the time at which it began, so that the names sort by time.
//
// A process goes on in the newest folder of a destination if the one before has written it, has ended, and has kept
// beside the database what is there: the last files, and a digest of each page as they have left it. The first file of
// the process has the pages that differ, whatever has changed them. Every other attachment of a Replicator to the
// database begins a new folder in each destination.
//
// Invariant: one process at a time writes to a folder, and what it adds follows on all that is there. So a
// database that was replaced, which is in another epoch, or a second machine, can't mix its changes into those of
// another one. Whether the process before has ended is known by the lock, on the same boot of the system, or it has
// stopped cleanly. It has also left the name of an object that one process alone can make in the folder, since the disk
// may have been cloned or put back: without that object nothing is added.
//
// A COMMIT that fails ends the attachment, because its frames may be captured, and SQLite overwrites them. A
// destination begins a new folder also when it misses changes, because it was away for longer than the backlog
// reaches, and when another program has deleted its files: a copier lists them every ten minutes.
//
// # What a copy has
//
// A commit is at every destination that answers within about a second, and when Close returns
// nil. A destination that does not answer never holds up a commit, nor another destination, unless
// Sync is set: then AwaitCopy, after each commit, waits for it.
//
// What waits for a destination takes up the backlog at most: 256 MiB, or the size of the database
// if that is more; half of what is free on a small disk. The backlog's first file has the whole
// database, and folders begin with it. Another copy is beside the backlog while a folder begins
// later, and once a day.
//
// # The lease
//
// A lease is an object of an S3 bucket that is only written conditionally: If-None-Match to make
// it, If-Match to change it.
//
// Invariant: no two processes have a valid Lease at the same time. No two clocks are compared: each
// process measures, on its own clock that never stops nor is set, how long something takes. Of the
// duration D that the object names,
//
//   - a holder renews every D/5, and its lease is valid for 3D/5 from before it sent the last renewal
//     that succeeded;
//   - a Candidate takes a lease that it has seen unchanged for 4D/5, which began after the renewal.
//
// The fifth between them is for clocks that run at different speeds. A renewal changes the object,
// because it counts, and so its ETag: what was sent earlier and arrives late finds another one, and
// changes nothing.
//
// A process that was stopped or suspended finds its lease invalid as soon as it asks Check. A lease
// that was invalid once stays so: a renewal that is answered after the end makes it valid no more.
// The clock of a virtual machine that is paused by its hypervisor must go on, as it does with the
// usual ones.
//
// # The standby
//
// A process serves while it has the lease of the destination. Until then it keeps a copy of what the
// holder has copied, and changes nothing else but that its own database goes out of the way.
//
// Invariant: a new holder goes on from what reaches the position of the lease: its own database, or
// else the copy of the folder that the lease names, in a new epoch. Otherwise it leaves the lease to
// a process that has the commits. The database has the lineage LeaseState.Holder before anything is
// committed to it.
//
// A process that is started again after a crash takes the lease of the process before at once, if it
// knows it to have ended: that had the same lock, on the same boot of the system. Otherwise it waits
// for the end of the lease.
//
// # What the caller owes
//
// Of a Replicator: the driver calls Open before it opens the database, Opened when that is done, Committed after each
// commit, Dropped after a COMMIT that failed, and Run. While Attached reports true, it runs no checkpoint, because
// Litestream does. It calls Close after it has closed its own connections: then the last synchronization has
// everything, and closing Litestream's descriptor of the file releases no lock that is needed. A process that does
// not replicate calls Forget.
//
// Of a Lease: the holder runs Run while it serves, calls Check after each commit and before each
// answer that claims to be current, and answers nothing when that fails. It calls Serve before the
// first commit, and SetFolder when a copy of the database has begun. It calls Release after it has
// stopped for good.
//
// Of RunStandby: it calls StandbyConfig.Serve, which opens the database, calls Serve of the lease
// before it acknowledges anything, and has closed the database when it returns. StandbyConfig.Lost
// ends the process: it must not return.
//
// # Shutting down
//
// RunStandby returns nil when its context has ended, and ErrHandedOver after "byre takeover". The Run
// methods of a Replicator and of a Lease end with their context, that of a Lease also when it is lost,
// with ErrLeaseLost. The caller closes a Replicator and a Follower.
package replication
