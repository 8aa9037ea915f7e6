// Package vfs is a VFS of SQLite that injects faults, and that loses unsynced writes when it
// simulates a power failure. It is a shim: it calls SQLite's own VFS for everything that it
// does not change. A process has one: Register makes it the default.
//
// The VFS writes to the file at once, as SQLite's own writes to the kernel's cache: other
// processes see a write, and a kill -9 loses nothing. For each file the package remembers the
// contents of the disk: the synced contents of each sector that was changed since the last
// sync, and the synced size. PowerFails restores some of these.
//
// The simulated disk has the properties that SQLite expects of a disk: a sector of 512 bytes
// is written whole or not at all, in any order before a sync; a write changes no other
// sector; synced sectors stay. Names of files are durable at once. Locks and the index of the
// write-ahead log go to SQLite's own VFS. Only one process writes to a file.
package vfs
