// Package transfer translates the objects of a cluster between etcd's key space, as a
// stock kube-apiserver stores them, and the rows of byre's database.
//
// In etcd an object of a built-in resource is protobuf in its storage version, under
// /registry/PREFIX/[NAMESPACE/]NAME. A custom resource, a CustomResourceDefinition and
// an APIService are JSON, under /registry/GROUP/RESOURCE/[NAMESPACE/]NAME. byre stores
// all of them as JSON in the storage version, under a key that has group, resource and
// owner.
//
//   - An object keeps its uid, its creationTimestamp, and the revisions that created
//     and last wrote it. History is not carried over, because etcd's compaction could
//     have removed it: there is none before the last revision.
//   - A value that is encrypted at rest is carried over as it is, in both directions.
//     Its key in etcd, with which it is authenticated, is the path with which byre
//     decrypts it.
//   - What is left out is counted, by the reason: keys outside the prefix, what servers and
//     kine keep for themselves, and the allocators' ranges, which a server rebuilds from the
//     Services at its start. A key of etcd that belongs to no resource that this version knows
//     is an error, and so is an object that cannot be decoded.
//   - Summarize and SummarizeRows give the same hash for the same objects, whether they
//     are read from etcd or from rows, because each object is decoded and encoded anew.
//
// A Translator is safe for use by one goroutine.
package transfer
