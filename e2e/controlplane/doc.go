// Package controlplane tests byre under upstream's own control plane: the real
// kube-controller-manager and kube-scheduler, which speak protobuf as they do by default,
// and kwok, which plays the kubelets. They run on SQLite, and on two replicas over
// PostgreSQL behind one address.
//
// The tests look at what users get: a rollout that ends, a Pod that is evicted, a claim
// that is bound. In the end each server is killed in turn in the middle of a rollout,
// and nothing may be lost or restarted by hand. -pods and -kills make that longer. With
// -in-process the same scenarios run without kube-controller-manager and kube-scheduler: byre
// runs their controllers and scheduler in its own processes. One test runs both: the real
// kube-controller-manager waits for byre's.
package controlplane
