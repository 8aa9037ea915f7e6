// Package auth configures authentication and authorization from kube-apiserver's flags.
//
// Upstream's builders make the authenticators and authorizers: packages authenticator
// and authorizer of k8s.io/kubernetes/pkg/kubeapiserver. This package gives the
// builders other sources than kube-apiserver does:
//
//   - The RBAC authorizer reads roles and bindings from the server's own store
//     (package rbac). A write to them therefore takes effect on the next request.
//   - The objects that a service account token is bound to, and the Secrets of
//     bootstrap tokens, are read from the stores (package lookup) when a token is verified.
//     kube-apiserver keeps all Secrets and Pods decoded in informers.
//   - The Node authorizer's Pod informer keeps only the fields that its graph uses,
//     and starts with the first request of a node.
//   - An authenticator in front of upstream's caches verified client certificates.
//
// The package promises: members of system:masters are always allowed; a request on
// which no authorizer has an opinion is denied; a client certificate is verified
// against the current content of the CA files, not their content at the start.
//
// All servers of a database must accept each other's credentials: TrustedKeys
// compares a server's keys with those that the database was served with.
//
// New reads files and starts no goroutine of its own. Upstream's OIDC authenticators
// and upstream's reload of --authentication-config and --authorization-config start goroutines in their
// constructors; those end with the context given to New. Run owns all other goroutines
// and joins them.
package auth
