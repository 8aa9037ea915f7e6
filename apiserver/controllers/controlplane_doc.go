// Package controlplane runs the controllers that every kube-apiserver runs
// (k8s.io/kubernetes/pkg/controlplane/apiserver):
//
//   - the controller of the identity Lease, by which servers find each other, and the
//     garbage collection of the Leases of servers that are gone (KEP-1965);
//   - the controller of the ConfigMap that records since when the use of legacy service
//     account tokens is tracked (KEP-2799);
//   - the coordinated leader election of components (KEP-4355).
//
// Beside them it publishes under which names and addresses this server is reached, so that no
// server approves a node's certificate for them.
//
// Each controller runs if upstream's feature gate is on and the APIs that it writes are
// served.
//
// # What the caller owes
//
// The caller starts the informers after New. The server answers the client in Config
// while Run runs, and also after Run's context has ended, because Run then deletes the
// identity Lease.
//
// # How it shuts down
//
// Run returns when its context has ended and the Lease is deleted, or ten seconds after
// the context has ended. Goroutines of upstream's controllers may end a little later, with
// their last request.
package controllers
