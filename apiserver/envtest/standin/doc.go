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
//
// # Assets
//
// MakeAssets makes the folder that KUBEBUILDER_ASSETS names. It needs no program but byre.
//
// controller-runtime's envtest starts the programs "kube-apiserver" and "etcd" of that
// folder; tests may start "kubectl". All three are links to byre, which behaves
// according to the name that it is started under. byre contains no kubectl: under that
// name it runs the user's kubectl (FindKubectl). A kubectl of its own would enlarge a
// program that is mostly run as a server.
//
// # Ports
//
// TakePort chooses ports of 127.0.0.1 for tests that start servers which must be told
// their port before they listen.
//
// A port that is merely free may be taken by another program before the server listens on it,
// or while the server restarts. So each process reserves blocks of ports, as HashiCorp's
// freeport does (https://pkg.go.dev/github.com/hashicorp/consul/sdk/freeport): it listens on the
// first port of a block until it ends, and hands out each of the other ports once. Two
// processes never hand out the same port while both run.
package standin
