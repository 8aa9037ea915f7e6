// Package server serves the etcd v3 API over a revision store and its feed: KV, Watch, Lease, Maintenance, Cluster and
// the health check of gRPC. It knows nothing of Kubernetes but the prefix of its keys.
//
// # Keys, values and revisions
//
//   - A revision of etcd is a revision of the store. The store gives each write of a key one of its own, so that a
//     transaction can write one key at most. What would need more is refused with Unimplemented before anything is
//
// done.
//   - The keys below a prefix of Kubernetes, such as /registry/pods/, are a resource of the store; all others are one
//     resource (RecordOf). The name of a record orders as its key does.
//   - A value comes back byte by byte as it was put. Text is stored as it is, anything else encoded as text
//     (encodeValue). The version and the lease of a key are in the UID of its record (identity), so that history has
//     them too.
//
// # Two meanings of compaction
//
// A client's Compact moves the note of the compacted revision, below which reads and watches fail. What the store's
// history keeps is another matter: that is sqlstore.Options.Retention.
//
// # Several servers of one database
//
// The compacted revision, leases and alarms are notes of the database, which every server reads. Each server counts the
// time of each lease from when it has seen the lease granted or renewed, or from its own start; whoever finds one over
// revokes it, unless it was renewed meanwhile.
//
// # What the caller owes
//
// The caller runs the store and the feed, calls Start and then Run, and registers the services. It stops Run after
// the last request has ended.
package server
