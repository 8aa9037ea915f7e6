// Package postgres keeps a revision store in a PostgreSQL database, which any
// number of processes may share.
//
// A batch is one pipelined round trip: it begins a READ COMMITTED transaction,
// locks the row of store, and then, in a statement of its own, whose
// snapshot is younger than the lock, compares, numbers and writes. So every
// process gives revisions in the order of commits, and a snapshot that shows
// one revision shows all before it. Reads are one statement, or one pipelined
// REPEATABLE READ transaction: one round trip as well. The first request on a
// connection that was idle for a second is preceded by a ping, because a batch sent
// on a connection that is dead has an unknown outcome.
//
// NOTIFY is not part of a batch. Another connection sends it after the COMMIT, once for
// all batches that were committed meanwhile. There are two reasons. A transaction that
// notifies holds a lock of the whole server until it has committed, so a write would wait
// for the standby of another database. And the server answers a COMMIT that shares a
// pipeline with later statements only when those are done.
//
// # What is promised
//
// The driver promises what sqlstore.Driver demands. Besides:
//   - A process that stops while it holds the lock (SIGSTOP, a cut cable) delays the
//     others by Options.LockTimeout at most: then they terminate its session.
//   - A read whose server does not answer for Options.ReadTimeout fails with
//     ErrUnavailable, and the driver drops the connections to that server. A batch that
//     was sent before that read then stops to wait for its answer.
//   - Only a primary is read. Each read and each batch verifies that its snapshot
//     holds the last change that this process has seen, so that no read is older
//     than another before it; a database that has lost commits is given a new
//     epoch, in which all that was seen before is compacted.
//   - A COMMIT is never cancelled. If it were cancelled while it waits for a synchronous
//     standby, its changes would become visible without being replicated.
//   - Nothing but Listen needs a session that outlives its transaction, and Listen is
//     only a hint, on a connection of its own. So the driver works through a pooler in
//     transaction mode. If it notices one, it uses no prepared statements.
//   - A server that may lose commits (fsync or synchronous_commit off) is
//     refused unless Options.AllowLoss says otherwise.
//
// ReadSnapshot reads a whole store beside the processes that serve it; Load fills a
// database that never held anything.
//
// # What the caller owes
//
// The caller migrates the schema before (migrations.Up). The role may terminate sessions
// of its own, as every role may.
package postgres
