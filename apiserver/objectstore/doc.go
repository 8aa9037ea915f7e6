// Package objectstore keeps Kubernetes objects in byre's revision store: it is an
// implementation of k8s.io/apiserver/pkg/storage.Interface over sqlstore (what
// is durable) and watch (what is current, as encoded bytes).
//
// # What is promised
//
//   - Every answer, error and event is the one that etcd3's store behind a
//     watch cache would give; upstream's own suite is run against it.
//   - Current reads come from the feed's encoded records after a linearizable
//     read index; reads at a revision, and of resources that nothing lists,
//     come from the database.
//   - The raw side (GetEncoded, ListEncoded, WatchEncoded) answers in the
//     storage version's JSON without decoding, and only while those bytes are
//     what a decode and an encode would give: a record of another Form is
//     decoded, defaulted and encoded first.
//
// # The forms of an object
//
// An object of a list or a watch passes through three forms: the database's row is a
// sqlstore.Record, the feed and this package hold it as a watch.Entry, and an Encoded is
// what a handler sends. A page of a list and an event of a watch refer to entries; what a
// Format or a typed object needs is made of one entry at a time.
//
// # What the caller owes
//
// The feed and the sqlstore behind a Store must be running. Objects got from
// GetList and Watch may be shared with other readers: nobody writes to them.
// Transformers authenticate values with the object's key, so an encrypted
// value can't be moved to another key.
//
// # Shutting down
//
// A Store owns no goroutine except one for each watch.Interface it returned;
// those end with the context they were given or with Stop.
package objectstore
