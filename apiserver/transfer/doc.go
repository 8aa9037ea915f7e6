// Package transfer moves the objects of a cluster between etcd's key space, as a stock
// kube-apiserver keeps them there, and the rows of byre's database.
//
// In etcd an object of a built-in resource is protobuf in its storage version, under
// /registry/PREFIX/[NAMESPACE/]NAME; a custom resource, a CustomResourceDefinition and an
// APIService are JSON, under /registry/GROUP/RESOURCE/[NAMESPACE/]NAME. byre keeps all of
// them as JSON in the storage version, under a key that has group, resource and owner.
//
// # What is promised
//
//   - uid, time of creation, and the revisions that created and wrote an object stay
//     what they are. What etcd's compaction could have forgotten is forgotten: there is
//     no history before the last revision.
//   - A value that is encrypted at rest is carried over as it is, in both directions:
//     its key in etcd, which authenticates it, is the path that byre opens it with.
//   - What is left out is counted, with the reason. A key of etcd that belongs to no
//     resource that this version knows, and an object that it can't decode, are errors.
//   - Summarize and SummarizeRows give one hash for the same objects, whichever side
//     they are read from: each is decoded from what is stored there and encoded anew.
//
// # What is left out
//
// Keys outside the prefix (kube-apiserver's compact_rev_key, other programs'), the
// addresses of the servers that ran (masterleases, peerserverleases), kine's health, and
// the allocators' ranges, which a server rebuilds from the Services at its start. In the
// other direction: byre's own records.
//
// A Translator is safe for use by one goroutine.
package transfer
