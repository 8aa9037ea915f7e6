// Package registry builds the REST storages of Kubernetes' built-in API groups. They come from
// upstream's storage providers (k8s.io/kubernetes/pkg/registry/<group>/rest); the core group has
// a provider of its own (providers.go), because its allocators connect to etcd in upstream. The
// RESTOptionsGetter in Config decides where objects are stored.
//
// # What it promises
//
//   - The groups, versions, resources and subresources are those of a stock
//     kube-apiserver of the pinned Kubernetes release with the same
//     --runtime-config and feature gates.
//   - The Stores of all versions of a resource have equal configurations. The versions share
//     the objects; upstream makes a registry for each.
//   - No storage connects to etcd.
//
// # Cluster IPs and node ports
//
// A cluster IP is allocated by creating an IPAddress object, which upstream's allocator does through
// the loopback client (ClusterIPs). The allocated node ports are a bitmap in one object under
// ranges/servicenodeports, as kube-apiserver stores them in etcd (NodePorts). Upstream's allocator
// of node ports connects to etcd; this one uses the storage.Interface of a RESTOptionsGetter.
//
// Upstream's repair loops compare the allocations with the existing Services, once at the start and
// then periodically. No node port is allocated before the first repair has stored the initial
// bitmap.
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
