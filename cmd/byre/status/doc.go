// Package status collects what "byre status" shows of a server and its cluster: the
// database, the history, the replicas and leaders, the certificates, and the alarms.
//
// # What it promises
//
// Read requests a running server's API and /metrics, with the rights of an
// administrator, and changes nothing. The result contains no secret: the server reports
// its database by file, or by host and name.
//
// # What the caller owes
//
// Nothing: each request has a deadline of its own, and Read joins the goroutines that it
// starts.
package status
