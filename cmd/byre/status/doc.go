// Package status collects what "byre status" shows of a server and its cluster: the
// database, the history, the replicas and leaders, the certificates, and the alarms.
//
// Read requests a running server's API and /metrics, with the rights of an administrator, and
// changes nothing. Each request has a deadline of its own, and Read joins the goroutines that it
// starts. The result contains no secret: the server reports its database by file, or by host and
// name.
package status
