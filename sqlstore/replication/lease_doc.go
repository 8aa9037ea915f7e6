// Package lease lets one process at a time serve a database, by an object of an S3 bucket that is only
// written conditionally: If-None-Match to make it, If-Match to change it.
//
// # What is promised
//
// Invariant: no two processes have a valid Lease at the same time. No two clocks are compared: each
// process measures, on its own clock that never stops nor is set, how long something takes. Of the
// duration D that the object names,
//
//   - a holder renews every D/5, and its lease is valid for 3D/5 from before it sent the last renewal
//     that succeeded;
//   - a Candidate takes a lease that it has seen unchanged for 4D/5, which began after the renewal.
//
// The fifth between them is for clocks that run at different speeds. A renewal changes the object, because
// it counts, and so its ETag: what was sent earlier and arrives late finds another one, and changes nothing.
//
// A process that was stopped or suspended finds its lease invalid as soon as it asks Check. A lease that was invalid
// once stays so: a renewal that is answered after the end makes it valid no more. The clock of
// a virtual machine that is paused by its hypervisor must go on, as it does with the usual ones.
//
// # What the caller owes
//
// It runs Run while it serves, calls Check after each commit and before each answer that claims to be
// current, and answers nothing when that fails. It calls Serve before the first commit, and SetFolder
// when a copy of the database has begun. It calls Release after it has stopped for good.
package replication
