// Package standby has one of two processes serve a SQLite database that is replicated to S3. The other one
// follows it, and takes over when it ends.
//
// # What is promised
//
// A process serves while it has the lease of the destination. Until then it keeps a copy of what the holder
// has copied, and changes nothing else but that its own database goes out of the way.
//
// Invariant: a new holder goes on from what reaches the position of the lease: its own database, or else the copy of the
// folder that the lease names, in a new epoch. Otherwise it leaves the lease to a process that has the commits. The
// database has the lineage State.Holder before anything is committed to it.
//
// A process that is started again after a crash takes the lease of the process before at once, if it knows it to
// have ended: that had the same lock, on the same boot of the system. Otherwise it waits for the end of the lease.
//
// # What the caller owes
//
// Run calls Config.Serve, which opens the database, calls Serve of the lease before it acknowledges anything, and
// has closed the database when it returns. Config.Lost ends the process: it must not return.
package replication
