// Package vfs is a VFS of SQLite that fails when it is told to, and that loses what was
// not synced when the power fails. It stands before SQLite's own VFS and passes on what
// it does not change. A process has one: Register makes it the default.
//
// Locks and the index of the write-ahead log go to SQLite's own VFS always. Names of files
// are durable at once; what is in them is not.
package vfs
