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
// NOTIFY is no part of a batch. It comes after the COMMIT, from another connection,
// once for all batches that were committed meanwhile: a transaction that notifies
// holds a lock of the whole server until it has committed, so that a write would wait
// for the standby of another database; and the answer of a COMMIT that shares a
// pipeline with what comes after it is sent when that is done.
//
// # What is promised
//
// What sqlstore.Driver asks for. Besides:
//   - A process that stops while it holds the lock (SIGSTOP, a cut cable) holds
//     up the others for Options.LockTimeout: then its session is terminated.
//   - A read whose server says nothing for Options.ReadTimeout fails with
//     ErrUnavailable, and the connections to that server are dropped. A batch that
//     was sent before that read does not wait for its answer any longer.
//   - Only a primary is read. Each read and each batch verifies that its snapshot
//     holds the last change that this process has seen, so that no read is older
//     than another before it; a database that has lost commits is given a new
//     epoch, in which all that was seen before is compacted.
//   - A COMMIT is never cancelled, by whatever ends the wait for it: cancelled
//     while it waits for a synchronous standby, it would become visible without
//     being replicated.
//   - Nothing needs a session to outlive its transaction, but Listen, which has
//     its own connection and is only a hint: it all works through a pooler in
//     transaction mode. Where one is noticed, no prepared statements are used.
//   - A server that may lose commits (fsync or synchronous_commit off) is
//     refused unless Options.AllowLoss says otherwise.
//
// ReadSnapshot reads a whole store beside the processes that serve it; Load fills a
// database that never held anything.
//
// # What the caller owes
//
// The schema is there (migrations.Up), and the role may terminate sessions of
// its own, as every role may.
package postgres
