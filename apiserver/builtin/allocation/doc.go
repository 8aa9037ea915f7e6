// Package allocation hands out the cluster IPs and node ports of Services.
//
// A cluster IP is allocated by creating an IPAddress object: upstream's allocator
// over a client does that. The node ports that are taken are one object, a bitmap
// under ranges/servicenodeports, as in upstream's etcd; here it is kept through
// the storage.Interface that a RESTOptionsGetter gives, where upstream's own
// allocator would dial etcd.
//
// Both are repaired against the Services there are, once at start and then
// periodically, by upstream's repair loops. Nothing is allocated before the first
// repair has made the initial state.
package allocation
