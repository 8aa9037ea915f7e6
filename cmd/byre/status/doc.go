// Package status says how a server and its database are: what "byre status" shows, and what "byre
// check" finds.
//
// # Status
//
// Read requests a running server's API and /metrics, with the rights of an administrator, and changes
// nothing: the database, the history, the replicas and leaders, the certificates, and the alarms. Each
// request has a deadline of its own, and Read joins the goroutines that it starts. The result contains
// no secret: the server reports its database by file, or by host and name.
//
// # Check
//
// Check compares the rows of a whole store with each other: objects with their keys, and the undo log
// with the objects. It reads one snapshot, once, and goes on after a row that can't be read. It needs
// some 100 bytes of memory for each object, and as much for each object that has changes. It changes
// nothing and starts no goroutine.
package status
