// Package registry builds the REST storages of Kubernetes' built-in API groups. They come from
// upstream's storage providers (k8s.io/kubernetes/pkg/registry/<group>/rest); the core group has
// a provider of its own (core.go), because its allocators connect to etcd in upstream. The
// RESTOptionsGetter in Config decides where objects are stored.
//
// # What it promises
//
//   - The groups, versions, resources and subresources are those of a stock
//     kube-apiserver of the pinned Kubernetes release with the same
//     --runtime-config and feature gates.
//   - The Stores of all versions of a resource have equal configurations. The versions share
//     the objects; upstream makes a registry for each.
//   - No storage connects to etcd. Node ports are allocated in the server's own store,
//     cluster IPs as IPAddress objects over the loopback client.
//
// # What the caller owes
//
// The caller sets the feature gates before New, starts the informers of the given
// factory after New, and runs Run while the server serves requests. Without Run no
// cluster IP or node port is allocated or repaired.
//
// # How it shuts down
//
// Run returns when its context ends, after its repair loops and the allocators have
// stopped. If the caller does not call Run, it must call Close.
package registry
