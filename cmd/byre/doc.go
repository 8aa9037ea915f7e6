// Command byre is a Kubernetes API server that keeps its objects in SQLite or PostgreSQL.
//
// The commands are here, each in a file of its name or of what it shares with others; those that ask
// a server as kubectl does are in package client. Only this package joins the servers and chooses a
// database. byre behaves according to the name that it is started under: kube-apiserver, etcd and
// kubectl are for tests (package envtest), kubectl-byre is the plugin of kubectl.
//
// # The configuration file
//
// The flags of "byre serve" can be in a file of YAML (configfile.go):
//
//	secure-port: 8443
//	authorization-mode: [Node, RBAC]
//	retention-for: [events=2d]
//
// A key is the name of a flag, and its value is what the command line would have after the equals
// sign; the items of a list are those of a flag that takes several values. An unknown key, and one that
// is there twice, are refused in one line that names the file, the line and the flag. A flag of
// the command line replaces the value of its name as a whole. A file that "byre config" has printed sets
// every flag to the value that it had.
package main
