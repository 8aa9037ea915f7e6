// Package oracle puts the same requests to byre and to a stock kube-apiserver
// with etcd, and compares what they answer: status, headers, body.
//
// A request stands in a table; both servers get the tables in the same order,
// so that they hold the same objects. What must differ (identifiers, times,
// revisions) is evened out first. What may differ for a reason stands with that
// reason in the table of differences, and must differ indeed.
package oracle
