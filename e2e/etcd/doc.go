// Package etcd has the tests of "byre etcd" from outside: a real etcd and byre etcd on each database are asked
// the same, and what they answer is compared.
//
// TestAnswers is a table of lines. A line is a function that asks one server through gRPC and notes what it
// answers, field by field. Revisions are noted relative to the revision before the line; what differs between
// any two etcds (identities, sizes, hashes) is noted as "set". differences_test.go lists the answers in which byre etcd
// differs from etcd on purpose, with the reason; one that no longer differs fails the test.
//
// The other tests run a stock kube-apiserver on byre etcd.
package etcd
