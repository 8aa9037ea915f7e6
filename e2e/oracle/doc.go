// Package oracle sends the same requests to byre and to a stock kube-apiserver with etcd,
// and compares the answers: status, headers, body.
//
// The requests are in tables. Both servers get the tables in the same order, so that they
// hold the same objects. The comparison ignores what must differ (identifiers, times,
// revisions). The table of differences lists what may differ, each with its reason; a
// listed difference that does not occur fails the test.
package oracle
