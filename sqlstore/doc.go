// Package sqlstore is the revision store: it keeps records under keys, gives
// every change a revision, and remembers what each change replaced.
//
// It knows bytes, keys and revisions. It knows no Kubernetes type and no SQL;
// the drivers in its sub-packages know SQL and nothing else.
//
// # What is promised
//
//   - Revisions are dense: the n-th effective change has revision n (plus what a
//     restore skipped). Revision order is commit order.
//   - A write whose precondition fails takes no revision.
//   - Commit returns, and Publish is called, only after the database has made
//     the change durable. Publish is called once for each change that this
//     process made, in revision order.
//   - A reader that sees revision r sees every change up to r.
//   - State.Revision never goes back, whatever is compacted, deleted or restored.
//
// # What the caller owes
//
// The caller calls Run in a goroutine: Commit returns only while Run is running.
// The store and the caller share the byte slices that they give each other: neither
// writes to them.
//
// # Progress
//
// ReportElapsed reports the progress of operations that take longer than two seconds
// (ReportAfter), for the packages that use a store.
//
// # Shutting down
//
// The caller cancels Run's context. Run finishes the transaction under way, fails the
// writes in the queue with ErrClosed, joins its goroutines and returns. Then the caller
// closes the driver.
package sqlstore
