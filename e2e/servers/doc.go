// Package servers starts the servers that the end-to-end tests and the benchmark
// talk to, as processes of their own on free ports of 127.0.0.1: byre, and the
// stock kube-apiserver with its etcd.
//
// Whoever starts a server stops it: Stop asks it to end and waits; Kill does not
// ask. What a server logs is kept in its directory.
package servers
