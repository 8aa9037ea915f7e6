// Package storage keeps Kubernetes objects in byre's revision store. It implements
// k8s.io/apiserver/pkg/storage.Interface over sqlstore, which stores them durably, and
// watch, which has the current objects in memory as encoded bytes.
//
// # What is promised
//
//   - Every answer, error and event is the one that upstream's etcd3 store behind a
//     watch cache would give. Upstream's own test suite runs against this package.
//   - Reads of the current state are linearizable: the feed answers them from memory
//     after it has learned the last revision. Reads at an older revision, and reads of
//     resources that no client lists, query the database.
//   - GetEncoded, ListEncoded and WatchEncoded answer with the stored bytes, without
//     decoding, as long as these equal what a decode and an encode would give. A record
//     of another Encoding is decoded, defaulted and encoded before it is answered.
//
// # The forms of an object
//
// An object of a list or a watch passes through three forms. The driver reads a row as
// a sqlstore.Record. The feed and this package hold it as a watch.Entry. A handler
// sends it as an encoding.Encoded. A page of a list and an event of a watch refer to entries; a
// representation or a typed object is made of one entry at a time.
//
// # What the caller owes
//
// The caller runs the feed and the sqlstore behind a Store. The caller does not write
// to objects that it got from GetList and Watch, because other readers may share them.
// Transformers authenticate values with the object's key, so an encrypted value can't
// be moved to another key.
//
// # Shutting down
//
// A Store owns no goroutine except one for each watch.Interface that it has returned.
// Such a goroutine ends with the context of the watch or with Stop.
package storage
