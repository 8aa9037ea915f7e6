// Package standin answers for etcd where a test starts an etcd beside kube-apiserver.
//
// controller-runtime's envtest starts a program of the name "etcd", waits for its
// /health, gives its URL to a program of the name "kube-apiserver", and deletes its data
// directory in the end. byre needs no etcd. Under the name "etcd" it is this server: it
// answers those health checks, and it tells byre under the name "kube-apiserver" which
// data directory the test has chosen, so that the database is deleted with it. It holds
// no keys and does not speak etcd's protocol.
//
// Serve is the server. It ends with its context, and with the process that started it:
// a test that is killed leaves no server behind. Find asks whether a URL leads to such a
// server; Wait returns when that server has ended.
package standin
