// Package crd serves apiextensions.k8s.io, and the instances of each established
// CustomResourceDefinition.
//
// It takes the place of k8s.io/apiextensions-apiserver/pkg/apiserver. Schemas, pruning,
// defaulting, validation, printer columns, conversion and the controllers that set the
// conditions of definitions are upstream's code. This package adds how the handlers of
// instances come and go.
//
// # What is promised
//
//   - A definition that any client has seen established is served on every server of the
//     database. Where the informer lags, the server reads the store.
//   - A definition may change or be deleted at any time. All handlers of its instances
//     derive from one stored state of it. A write takes effect only by the spec that is
//     stored when it is committed: otherwise it is executed again
//     (Server.serveRepeatedly). What another server has written by a newer spec is shown
//     by that spec. When the spec changes, watches end, and their clients resume where
//     they were; except for changes that change no answer (instances.SpecHash).
//   - When a definition is deleted, watches of its instances deliver every DELETED, on
//     every server of the database, and then end.
//   - What a definition owns, only its deletion removes, and all of it: no instance is
//     created of a definition that is gone or being deleted, and the database deletes a
//     definition only when it has no instances.
//   - Instances are answered from the stored bytes where these are what a decode would
//     give. Records are marked with the program, the storage version and a hash of its
//     schema (their Encoding); other records are decoded, defaulted and pruned by the current
//     schema.
//   - A webhook converts a stored value to a version once for all readers, and a page of
//     values in one call. A GET without resourceVersion, or a write, uses the result for 10
//     seconds, other readers for a minute. An object that cannot be converted hides no
//     other.
//   - A definition costs little more memory than its stored bytes until a client uses its
//     instances. Readers need the routes of a version, and its schema only where they
//     need objects; writers need compiled validation and the types of managed fields.
//     What no request has used for some minutes is dropped. OpenAPI documents are built
//     when a client asks for them, and the specs that they consist of are cached
//     compressed.
//   - The deletion of a definition lists its instances once, in pages.
//
// # Parts
//
// Package instances says what a definition serves and what a change of it means, and has the
// handlers of one definition's instances. The resolver holds both by name and finds them for a
// request. The controller feeds the resolver from an informer, and publishes discovery and OpenAPI.
// The informer reads the stored bytes and decodes no schemas.
//
// # What the caller owes
//
// Requests have the context values that package handlers needs. The store and the feed
// run before Run is called. Run must be running for a definition to become established.
//
// # How it shuts down
//
// Cancel Run's context before the loopback transport is closed. When Run has returned,
// this package does not use the store any more, except by requests: upstream offers no way
// to join the workers of its controllers, but Run waits for the finalizer's calls of the
// store, and refuses later ones. The requests of the workers end with the transport.
package crd
