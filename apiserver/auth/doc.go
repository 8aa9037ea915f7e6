// Package auth answers the two questions asked of every request: who is this,
// and may they do that?
//
// Both answers come from upstream's builders (k8s.io/kubernetes/pkg/kubeapiserver
// authenticator and authorizer), fed by kube-apiserver's flags. What this package
// adds is where the builders look things up:
//
//   - RBAC rules are read from the server's own store (package rbac), so that a
//     write to them is in force on the next request;
//   - the objects that a service account token is bound to, and bootstrap token
//     secrets, are fetched one by one over the loopback client when a token is
//     verified, instead of keeping every Secret and Pod decoded in memory;
//   - the Node authorizer sees Pods through an informer that keeps only the fields
//     which its graph is made of, and runs from the first question about a node on.
//
// Auth promises: members of system:masters are always allowed; what no authorizer
// has an opinion on is denied; a client certificate is checked against the CA file
// as it is now, not as it was at start.
//
// New reads files and starts nothing, except that upstream's OIDC authenticators
// and its reload of --authorization-config begin with their construction: they end
// with the context given to New. Run owns everything else.
package auth
