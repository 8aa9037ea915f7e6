// Package aggregator is the first server of the chain: it serves
// apiregistration.k8s.io, sends requests for what an APIService claims on to the
// server behind it, and passes on all others.
//
// It takes the place of k8s.io/kube-aggregator/pkg/apiserver. What upstream has
// that needs no server around it is upstream's: the storage of APIServices, the
// controllers of the condition Available, the registration of what is served
// here, the proxy itself.
//
// # What is promised
//
//   - A request is sent on with the identity that this server has established,
//     and none of the client's own making. Streams, upgrades and bodies of any
//     size pass; when the client goes, the backend sees it at once. No redirect
//     is followed.
//   - Claims may change at any time: each request is answered either by who had
//     the group version before or by who has it since, and those under way finish
//     as they began. Nothing that may be claimed is a 404 before it is known what
//     is.
//   - A backend that is slow, dead or lying is answered for by a 503 on its own
//     paths. It delays nobody else's discovery, can't describe what it does not
//     serve, and takes bounded memory: of what this server reads for itself, eight
//     megabytes a document, and ten for the head of an answer.
//   - While no APIService names a Service, this package costs two of upstream's
//     controllers that have nothing to do, and a look at an empty table for each
//     request.
//
// # Parts
//
// The follower watches the APIServices and keeps the claims. Services that they
// have in common, by address and certificate authority, are one backend: one
// transport, and one goroutine that asks what it serves. A backend with another
// certificate authority takes over what the one before has learned of the same
// Service. The registrar gives what
// is served here its APIServices, by what discovery has.
//
// # What the caller owes
//
// The context values that kube-apiserver's filters put into a request. The store
// and the feed must be running before Run, and Dependencies.Informers started.
//
// # Shutting down
//
// Cancel Run's context, before the loopback transport is closed. Upstream's
// controllers let go of what they were doing shortly after Run has returned.
package aggregator
