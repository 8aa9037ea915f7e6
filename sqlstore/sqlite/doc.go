// Package sqlite keeps a revision store in one SQLite file.
//
// One connection writes. A few others only read; each statement, and each list, reads one
// snapshot. Commits are synchronous=FULL: a commit that has returned survives a power loss.
// Maintain copies the write-ahead log back into the file on a connection of its own, so that
// writers seldom wait for that.
//
// # What is promised
//
// The driver promises what sqlstore.Driver demands. In addition:
//   - Only one process has the file open. migrations.InUseError names it to the others.
//   - Open refuses a file of another program or with another version of the schema, and
//     does not change it.
//
// ReadSnapshot reads a whole store while a process serves it. Load fills a new file, or one
// without data.
//
// # What the caller owes
//
// The caller migrates the schema before it opens the file (migrations.Up), and runs Maintain.
// Without Maintain the writer copies the log back, between two batches, when the log has
// reached Options.LogPages.
package sqlite
