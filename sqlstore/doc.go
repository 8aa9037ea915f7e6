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
//   - A change that fails its precondition, and a change of nothing, takes no
//     revision.
//   - Commit returns, and Publish is called, only after the database has made
//     the change durable. Publish is called once for each change that this
//     process made, in revision order.
//   - A reader that sees revision r sees every change up to r.
//   - State never goes back, whatever is compacted, deleted or restored.
//
// # What the caller owes
//
// Run must be running for Commit to return. Byte slices handed to the store
// and got from it are shared: nobody writes to them.
//
// # Shutting down
//
// Cancel Run's context; Run fails what still waits in the queue with ErrClosed,
// finishes the transaction under way, and joins its goroutines. Then Close the
// driver.
package sqlstore
