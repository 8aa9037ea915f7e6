// Package transfer moves a cluster of a stock kube-apiserver from etcd and from kine to byre
// and back, and compares what the servers show and what etcd holds, object by object.
//
// E2E_TRANSFER_OBJECTS is the number of objects; without it the tests make a few of each
// kind. "make transfer" runs them with 20,000.
package transfer
