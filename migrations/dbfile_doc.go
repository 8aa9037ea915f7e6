// Package dbfile has the lock of a SQLite database's file, which one process at a time holds, and
// recognizes the files of byre.
//
// The lock is an flock on a file beside the database, whose name has the suffix ".lock". The kernel
// releases it when the process ends, for whatever reason. SQLite's own locks are not enough: they
// would let a second process write between two transactions, and the revision store keeps counters
// in memory. The sqlite3 shell can read the database while the lock is held.
package migrations
