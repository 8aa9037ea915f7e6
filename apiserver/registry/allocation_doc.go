// Package allocation allocates the cluster IPs and node ports of Services.
//
// A cluster IP is allocated by creating an IPAddress object, which upstream's allocator
// does through a client. The allocated node ports are stored as a bitmap in one object
// under ranges/servicenodeports, as kube-apiserver stores them in etcd. Upstream's
// allocator of node ports connects to etcd; the one here uses the storage.Interface that
// a RESTOptionsGetter returns.
//
// The caller runs the Repair methods: upstream's repair loops compare the allocations
// with the existing Services, once at the start and then periodically. No node port is
// allocated before the first repair has stored the initial bitmap. Repair returns when
// its context ends; ClusterIPs.Stop stops the allocators.
package registry
