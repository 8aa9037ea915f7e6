// Package watch is the feed of committed changes: it tails the revision store,
// keeps each resource that somebody reads as a copy-on-write tree of encoded
// records, and lets any number of subscribers follow what changes. It knows
// keys, revisions and bytes; it knows no Kubernetes type.
//
// # What is promised
//
//   - Changes are applied in revision order, each once. A hole in the
//     revisions is logged as an error and treated as the loss of history: all
//     state is read again, and subscriptions end with ErrCompacted.
//   - A Snapshot is one resource at one revision, whole.
//   - A Subscription gives every change of its range after its start, in
//     order, each once, or ends with an error. It may be read as slowly as its
//     reader likes: what has left memory is read from the store's history.
//   - Latest is linearizable: it returns a revision that is not older than any
//     change that was acknowledged, by any process, before the call.
//
// # What the caller owes
//
// Run must be running for anything to be answered. Publish must be given to
// the store that writes through this process. Records and their Values are
// shared: nobody writes to them.
//
// # Shutting down
//
// Cancel Run's context; Run joins its goroutines, and whatever waits in this
// package then fails with ErrClosed.
package watch
