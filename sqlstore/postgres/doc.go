// Package postgres keeps a revision store in a PostgreSQL database, which any
// number of processes may share.
//
// A batch is one pipelined round trip. It begins a READ COMMITTED transaction and locks
// the row of the table store: that is the writers' lock. The next statement has a snapshot
// that is younger than the lock; it compares preconditions, gives revisions and writes.
// So all processes together give revisions in the order of commits, and a snapshot that
// shows one revision shows all before it. A read is one statement or one pipelined
// REPEATABLE READ transaction, and takes one round trip as well. pgx pings a connection
// that was idle for a second before it uses it, because a batch on a dead connection would
// have an unknown outcome.
//
// NOTIFY is not part of a batch. Another connection sends it after the COMMIT, once for
// all batches that were committed meanwhile. There are two reasons. A transaction that
// notifies holds a lock of the whole server until it has committed, so that a write would
// wait for the standby of another database. And the server answers a COMMIT that shares a
// pipeline with later statements only after those.
//
// # What is promised
//
// The driver promises what sqlstore.Driver demands. In addition:
//   - A process that stops while it holds the writers' lock (SIGSTOP, a cut cable) delays
//     the others by Options.LockTimeout at most. Then they terminate its session.
//   - A read whose server does not answer for Options.ReadTimeout fails with
//     sqlstore.ErrUnavailable, and the driver drops the connections to that server. It
//     also stops waiting for the answer to a batch that was sent before that read.
//   - The driver reads only from a primary. Each read and each batch verifies that its
//     snapshot holds the last change that this process has seen. So no read is older than
//     an earlier one. If the database has lost commits, the driver begins a new epoch, in
//     which every revision that was seen before is compacted.
//   - The driver never cancels a COMMIT. A COMMIT that is cancelled while it waits for a
//     synchronous standby makes its changes visible although they are not replicated.
//   - Only Listen needs a session that outlives a transaction. Listen has a connection of
//     its own, and its hints may be lost. So the driver works through a pooler in
//     transaction mode. It uses no prepared statements if it notices a pooler.
//   - Open refuses a server that may lose commits (fsync or synchronous_commit off) unless
//     Options.AllowLoss is set.
//
// ReadSnapshot reads a whole store while processes serve it. Load fills an empty database.
//
// # What the caller owes
//
// The caller migrates the schema before it opens the database (migrations.Up). The role
// must be able to terminate its own sessions, as every role is.
package postgres
