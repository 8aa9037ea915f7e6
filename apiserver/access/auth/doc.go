// Package auth configures authentication and authorization from kube-apiserver's flags.
//
// Upstream's builders make the authenticators and authorizers: packages authenticator
// and authorizer of k8s.io/kubernetes/pkg/kubeapiserver. This package gives the
// builders other sources than kube-apiserver does:
//
//   - The RBAC authorizer reads roles and bindings from the server's own store
//     (RBACListers). A write to them therefore takes effect on the next request.
//   - The objects that a service account token is bound to, and the Secrets of
//     bootstrap tokens, are read from the stores (storage.LookupReader) when a token is verified.
//     kube-apiserver keeps all Secrets and Pods decoded in informers.
//   - The Node authorizer's Pod informer keeps only the fields that its graph uses.
//   - An authenticator in front of upstream's caches verified client certificates.
//
// The package promises: members of system:masters are always allowed; a request on
// which no authorizer has an opinion is denied; a client certificate is verified
// against the current content of the CA files, not their content at the start.
//
// All servers of a database must accept each other's credentials: TrustedKeys
// compares a server's keys with those that the database was served with.
//
// # RBAC
//
// RBACListers list the four RBAC resources.
//
// Invariant: a lister returns the objects of a revision that is at least the feed's
// revision at the time of the call. A write that this replica has acknowledged
// therefore affects its next request; a write on another replica affects this one as
// soon as its feed has the change.
//
// The RBAC authorizer lists every binding on every request, so decoding the objects
// on each call is too slow. An informer keeps them decoded, but lags behind writes.
// RBACListers instead compare the feed's revision with the revision that they last read. If the
// feed is ahead, they first read the changes. They decode only objects whose
// revision they do not hold, because a revision identifies one state of one object.
// The returned objects are shared; the caller must not modify them.
//
// # Goroutines
//
// New reads files and starts no goroutine of its own. Upstream's OIDC authenticators
// and upstream's reload of --authentication-config and --authorization-config start goroutines in their
// constructors; those end with the context given to New. Run owns all other goroutines
// and joins them. RBACListers start none.
package auth
