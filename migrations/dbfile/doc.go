// Package dbfile guards the file of a SQLite database: it tells whether the file is
// byre's, and lets one process at a time open it.
//
// The lock is an flock on a file beside the database (its name with ".lock"), so the lock
// ends with the process, however that ends. SQLite's own locks would let a second process
// write between two transactions, which the revision store can't allow, because it keeps
// counters in memory. The sqlite3 shell can read the database meanwhile.
package dbfile
