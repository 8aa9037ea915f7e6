// Package controlplane runs what every server of a control plane runs for itself,
// as upstream's k8s.io/kubernetes/pkg/controlplane/apiserver does:
//
//   - the identity Lease by which servers know of one another, and the removal of
//     the Leases of servers that are gone (KEP-1965);
//   - the ConfigMap that says since when the use of legacy service account tokens
//     is recorded (KEP-2799);
//   - the election of leaders among the candidates of a component (KEP-4355).
//
// Each follows upstream's feature gate, and is left out where the API that it
// writes is turned off.
//
// # What the caller owes
//
// The API is served to the given client while Run runs, including the moment
// after its context has ended, in which the server deletes its Lease. The caller
// starts the informers after New.
//
// # Shutting down
//
// Cancel Run's context. Run returns when the Lease is deleted or ten seconds have
// passed; goroutines of upstream's controllers end with their requests.
package controlplane
