// Package storage keeps Kubernetes objects in byre's revision store. A Store implements
// k8s.io/apiserver/pkg/storage.Interface over sqlstore, which stores the objects of one resource
// durably, and watch, which has the current objects in memory as encoded bytes.
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
// # The Stores of all resources
//
// A RESTOptionsGetter makes the Store of each resource when its registry asks for it, as upstream's
// storage factory does (k8s.io/apiserver/pkg/server/storage). Resources say how the objects of a
// resource are encoded and what keys they have: SchemeResources for types that a scheme knows, and
// package crd for instances of custom resources. A Backend has what all Stores share.
//
// # Reads that are not requests
//
// A LookupReader reads built-in objects directly from the Stores of this process. Authentication
// reads the objects that tokens are bound to and the Secrets of bootstrap tokens. Admission plugins
// read Pods. Service resolvers read Services and EndpointSlices.
//
// Such a read passes no filter, makes no audit event, and is not counted in the metrics of requests. A
// client that is not authenticated therefore cannot cause requests by naming objects in its
// credentials. Upstream's plugins that need a clientset or informers get those of the loopback
// transport.
//
// # What the caller owes
//
// The caller runs the feed and the sqlstore behind a Store. The context of a write has the Request that
// asked for it (WithRequest), unless it is the server's own. The caller does not write
// to objects that it got from GetList and Watch, because other readers may share them; it owns the
// objects of a LookupReader. Transformers authenticate values with the object's key, so an encrypted
// value can't be moved to another key.
//
// # Shutting down
//
// A Store owns no goroutine except one for each watch.Interface that it has returned.
// Such a goroutine ends with the context of the watch or with Stop. The other types start none.
package storage
