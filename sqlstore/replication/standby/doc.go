// Package standby has one of two processes serve a SQLite database that is replicated to S3. The other one
// follows it, and takes over when it ends.
//
// # What is promised
//
// A process serves while it has the lease of the destination. Until then it keeps a copy of what the holder
// has copied, and changes nothing else but that its own database goes out of the way.
//
// A new holder goes on from the copy that the lease names, with everything that is in it, in a new epoch.
// Invariant: a process whose own database has the last holder's commits goes on with it. A file beside it
// names the holders for which that is so: this process writes its name there when the database is in place,
// and before it commits anything.
//
// A process that is started again after a crash takes the lease of the process before at once, if it knows it to
// have ended: that had the same lock, on the same boot of the system. Otherwise it waits for the end of the lease.
//
// Nothing is taken over while commits of the last holder are in no copy at all, because its first one was
// not complete, or because the first holder of all has ended before it served: that holder is waited for.
//
// # What the caller owes
//
// Run calls Config.Serve, which opens the database, calls Serve of the lease before it acknowledges anything, and
// has closed the database when it returns. Config.Lost ends the process: it must not return.
package standby
