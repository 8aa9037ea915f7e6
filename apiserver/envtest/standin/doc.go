// Package standin is a server that takes the place of etcd where a test starts an etcd
// for its kube-apiserver.
//
// controller-runtime's envtest starts a program of the name "etcd", waits for its
// /health, gives its URL to a program of the name "kube-apiserver", and at the end
// deletes etcd's data directory. byre needs no etcd. Under the name "etcd" byre is this
// server, which answers those health checks. Under the name "kube-apiserver" byre asks
// this server for the data directory that the test has chosen, and keeps its database
// there, so that the database is deleted with it. The server holds no keys and does not
// speak etcd's protocol.
//
// Serve runs the server. It ends with its context, and with the process that started
// it, so that a test that is killed leaves no server behind. Find reports whether a URL
// leads to such a server. Wait returns when that server has ended.
package standin
