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
//	apiVersion: byre.dev/v1alpha1
//	kind: ServerConfiguration
//	secure-port: 8443
//	authorization-mode: [Node, RBAC]
//	retention-for: {events: 2d}
//
// A field is named after its flag and has its meaning. Booleans and numbers are YAML's;
// durations, addresses and other values are strings in the flag's format; a flag that takes
// several values is a list, and one that takes pairs is a mapping. An unknown field, a field that is
// given twice, and a value of the wrong type are refused, in one line that names the file, the line
// and the field. A flag of the command line replaces the field of its name as a whole. A file that
// "byre config" has printed sets every flag to the value that it had.
package main
