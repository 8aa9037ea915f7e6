// Package watch is the feed of committed changes. A Feed follows the revision store, holds
// the current records of each resource that somebody reads in a copy-on-write tree, and lets
// any number of subscribers follow the changes. It knows keys, revisions and bytes; it knows
// no Kubernetes type.
//
// # What is promised
//
//   - The feed applies changes in the order of their revisions, each once. If a revision is
//     missing in the store, the feed logs an error and treats that as the loss of history:
//     it reads all state again, and subscriptions end with ErrCompacted.
//   - A Snapshot shows all records of one resource at one revision.
//   - A Subscription yields every change of its Interest after its start, in order, each
//     once, or ends with an error. Its reader may be slow: the Subscription reads changes
//     that have left memory from the store's history.
//   - Latest is linearizable: it returns a revision that is not older than any change that
//     any process acknowledged before the call.
//
// # Representations
//
// Representations caches the formats in which clients get records: JSON of another version,
// protobuf, metadata alone. Each Entry has a RepresentationSet.
//
//   - A representation is made once for all concurrent callers, and again only after it
//     was evicted. A scan (Representations.Scan) of more than fits may make it again.
//   - The bodies of all representations together stay within one budget. The cache evicts
//     those first that nobody has read recently, and DropUnused drops those that nobody
//     reads. Those of freed records count until the next sweep.
//
// # What the caller owes
//
// The caller calls Run in a goroutine: the other methods wait for it. It gives Publish to the
// sqlstore.Store of this process. Records and their Values are shared: nobody writes to them,
// nor to a Representation. The representations of a record in one Format always have the same
// bytes, except those that expire.
//
// # Shutting down
//
// The caller cancels Run's context. Run joins its goroutines and returns, and calls that wait
// in this package fail with ErrClosed.
package watch
