// Package builtin makes the REST storages of every API group that Kubernetes
// has built in: the table in this package says which group has which resource
// in which versions, and who constructs it. The strategies, validation,
// subresources and table printers are upstream's (k8s.io/kubernetes/pkg/registry);
// what they are kept in is decided by the RESTOptionsGetter they are given.
//
// # What is promised
//
//   - The groups, versions, resources and subresources are those of a stock
//     kube-apiserver of the pinned Kubernetes release with the same
//     --runtime-config and feature gates.
//   - All versions of a resource share one storage.
//   - No storage dials anything but what it is given; node ports are allocated in
//     our own store, cluster IPs as IPAddress objects over the loopback client.
//
// # What the caller owes
//
// The feature gates are set before New is called. The informers of the given
// factory are started by the caller after New, and Run is running while requests
// are served: without it no cluster IP or node port is allocated or repaired.
//
// # Shutting down
//
// Cancel Run's context. Run joins its repair loops and stops the allocators; a
// Builtin that is never Run must be Closed.
package builtin
