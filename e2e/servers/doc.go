// Package servers starts the servers that the end-to-end tests and the benchmark
// talk to, as processes of their own on free ports of 127.0.0.1: byre, and the
// stock kube-apiserver with its etcd.
//
// The caller that starts a server stops it: Stop sends SIGTERM and waits; Kill sends
// SIGKILL. The log of a server is in its directory.
package servers
