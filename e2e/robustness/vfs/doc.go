// Package vfs is a VFS of SQLite that fails when it is told to, and that loses what was
// not synced when the power fails. It stands before SQLite's own VFS and passes on what
// it does not change. A process has one: Register makes it the default.
//
// What SQLite writes goes to the file at once, as it goes to the kernel's cache: other
// processes see it, and a kill -9 loses nothing. The package remembers what the disk has
// instead: each sector that was changed since the last sync, and the size. PowerFails puts
// some of it back.
//
// What is promised of the disk is what SQLite expects of one: a sector of 512 bytes is
// written whole or not at all, in any order before a sync; a write changes nothing beside
// it; what was synced stays. Names of files are durable at once. Locks and the index of the
// write-ahead log go to SQLite's own VFS. Only one process writes to a file.
package vfs
