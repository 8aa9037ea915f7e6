// Package status gathers what "byre status" shows of a server and its cluster: the
// database, the history, the replicas and leaders, the certificates, and what needs an
// operator.
//
// # What it promises
//
// Read asks a running server by its API and /metrics, with the rights of an administrator, and
// changes nothing. It names no secret: the server tells its database by file or by host and
// name.
//
// # What the caller owes
//
// A context with a deadline. The package starts no goroutine and needs no shutdown.
package status
