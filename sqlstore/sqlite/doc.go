// Package sqlite keeps a revision store in one SQLite file.
//
// One connection writes; a few others only read, each statement or list in one
// snapshot of the write-ahead log. Commits are synchronous=FULL: a commit that
// has returned survives power loss. The log is copied back into the file by a
// connection of its own (Maintain), so that writers seldom wait for it.
//
// # What is promised
//
// The driver promises what sqlstore.Driver demands. Besides: one process has the file at
// a time (dbfile.InUseError names the other), a file of another program or another schema
// version is refused untouched, and so is an engine older than 3.51.3, which could lose a
// commit when a checkpoint met a reset of the log.
//
// ReadSnapshot reads a whole store beside the process that serves it; Load fills a new
// file, or one that never held anything.
//
// # What the caller owes
//
// The caller migrates the schema before (migrations.Up), and runs Maintain. Without
// Maintain the writer itself copies the log back, between two batches, when the log has
// grown to its cap.
package sqlite
