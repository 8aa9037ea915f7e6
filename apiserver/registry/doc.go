// Package registry builds the REST storages of Kubernetes' built-in API groups. A table
// (groups.go) lists the groups, their resources and versions, and the constructor of
// each resource. The strategies, validation, subresources and table printers are
// upstream's (k8s.io/kubernetes/pkg/registry). The RESTOptionsGetter in Config decides
// where objects are stored.
//
// # What it promises
//
//   - The groups, versions, resources and subresources are those of a stock
//     kube-apiserver of the pinned Kubernetes release with the same
//     --runtime-config and feature gates.
//   - All versions of a resource share one storage.
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
