// Package aggregator is the first server of the delegation chain. It serves
// apiregistration.k8s.io, proxies the requests that an APIService routes to another API
// server (a backend), and passes all others on to its delegate.
//
// It takes the place of k8s.io/kube-aggregator/pkg/apiserver. The registry of
// APIServices, the controllers of the condition Available, the registration of the group
// versions that this server serves itself, and the proxy of upgrades are upstream's code.
//
// # What is promised
//
//   - A request is proxied with the identity that this server has authenticated. Headers
//     by which the client claims an identity are removed. Backends and clients see what
//     they would see of upstream's proxy.
//   - Streams, upgrades and bodies of any size pass. When the client goes, the backend
//     sees the request end. No redirect is followed.
//   - Routes may change at any time. A request is answered either by the server that had
//     the group version before or by the one that has it since; requests in flight finish
//     as they began. Until the routes are known after a start, requests that one may route
//     wait: they are not answered with 404.
//   - A backend that is slow, dead or faulty causes 503 on its own paths only. It delays
//     no other backend's discovery, cannot describe group versions that do not lead to it,
//     and takes bounded memory: this server reads at most eight megabytes of a document,
//     and ten of an answer's header.
//   - While no APIService names a Service, this package costs two of upstream's
//     controllers, which are idle, and a look-up in an empty map for each request.
//
// # Parts
//
// The controller follows the APIServices with an informer and keeps the routes. APIServices
// that name the same Service with the same CA bundle share a backend, which has one
// transport and one goroutine that fetches its discovery and OpenAPI documents. When the
// Service or the CA bundle changes, the next backend inherits the documents of the old one. The
// registrar registers APIServices for the group versions that discovery has of this server itself.
//
// # What the caller owes
//
// Requests have the context values that kube-apiserver's filters set. The store and the
// feed run before Run is called, and the informers of process.Dependencies are started.
//
// # How it shuts down
//
// Cancel Run's context before the loopback transport is closed. The workers of upstream's
// controllers end shortly after Run has returned.
package aggregator
