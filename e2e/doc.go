// Package e2e tests byre from outside: the real kubectl and client-go against
// the program as it is built, on SQLite and on PostgreSQL, and beside a stock
// kube-apiserver with etcd where the two must answer alike.
//
// It is a module of its own, so that other modules do not depend on what only the tests
// need (kubectl, kube-apiserver and etcd, built from their modules).
package e2e
