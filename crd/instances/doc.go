// Package instances has what one CustomResourceDefinition means, and serves its instances: upstream's
// registry of custom resources over package storage, and the routes of package handlers.
//
// # Definitions
//
// A Definition is one state of a CustomResourceDefinition and never changes. It is stripped of its
// schemas: thousands of definitions are in memory at all times, and their schemas are needed only
// where instances are decoded. A Source decodes them.
//
// A Table holds the newest state of each definition. It never goes back: a state that arrives late is
// dropped. Every call that changes it returns the Change, from which alone the callers derive what to
// do: publish documents, replace handlers, end watches. All of this does no I/O, starts no goroutine
// and takes no lock.
//
// # Handlers
//
//   - Handlers serve the instances by one spec. Schemas, validation, the types of
//     managed fields and the Encoding of the records derive from one stored state of the
//     definition, its Source. Requests in flight finish by the spec they began with.
//   - Everything is made when a request first needs it. Release drops compiled
//     validation, types and schemas that no request has used since its last call.
//   - Answers are made as package crd promises: from the stored bytes where these are what a
//     decode would give, and each stored value is converted once for all readers.
//
// The package starts no goroutine.
package instances
