// Package dbfile guards the file of a SQLite database: who it belongs to, and
// that one process at a time has it open.
//
// The lock is an flock on a file beside the database (its name with ".lock"),
// so that it ends with the process however that ends. SQLite's own locks would
// let a second process in between two transactions; the revision store keeps
// counters in memory and can't allow that. Reading the database with the
// sqlite3 shell meanwhile is fine.
package dbfile
