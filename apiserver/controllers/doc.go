// Package controllers runs in the server what other clusters run beside it: the controllers of
// kube-controller-manager, on request the scheduler of kube-scheduler (Runner), and the controllers
// that every kube-apiserver runs (ControlPlane).
//
// # The controllers of kube-controller-manager
//
// The essential ones always run: without them an API server alone cannot delete a namespace,
// collect garbage, or create the default service accounts. The others start together with the first
// object that one of them works on, and pause while a kube-controller-manager leads (class, in controllers.go).
//
// The controllers are upstream's, with upstream's names and aliases. The constructors of
// kube-controller-manager build them, but for those where this server differs (ownController). The
// syntax of --controllers is that of kube-controller-manager. Each controller reaches the server
// through the API client in Config, under its own identity. The garbage collector is the exception:
// it reads the resources that this server stores directly from the store (garbagecollector.go).
//
// If several servers share a database (Config.Shared), only the server that holds the Lease runs the
// controllers. A server that sees another one hold the Lease, or can't renew it, stops its
// controllers at once and waits for the Lease again.
//
// # The controllers of kube-apiserver
//
// A ControlPlane runs, as k8s.io/kubernetes/pkg/controlplane/apiserver does:
//
//   - the controller of the identity Lease, by which servers find each other, and the
//     garbage collection of the Leases of servers that are gone (KEP-1965);
//   - the controller of the ConfigMap that records since when the use of legacy service
//     account tokens is tracked (KEP-2799);
//   - the coordinated leader election of components (KEP-4355).
//
// Each runs if upstream's feature gate is on and the APIs that it writes are served. The ControlPlane
// also publishes under which names and addresses this server is reached, so that no server approves a
// node's certificate for them.
//
// # What the caller owes
//
// The server answers requests of the configured clients while Run of the Runner and of the
// ControlPlane runs. The caller starts the informers of the ControlPlane after NewControlPlane.
//
// # How it shuts down
//
// When its context ends, Runner.Run stops the controllers, waits for them and their informers to end,
// and releases the Lease. ControlPlane.Run deletes the identity Lease, for which the server must
// still answer; it returns then, or ten seconds after its context has ended. Goroutines of its
// controllers may end a little later, with their last request.
package controllers
