// Package crd serves apiextensions.k8s.io, and for each established
// CustomResourceDefinition the resources that it defines.
//
// It takes the place of k8s.io/apiextensions-apiserver/pkg/apiserver. What a
// definition means (schemas, pruning, defaults, rules, columns, conversion) is
// upstream's code, and so are the controllers that give definitions their
// conditions. What this package has of its own is how handlers come and go.
//
// # What is promised
//
//   - A definition that any client has seen established is served, on every
//     server of the database: where the watch is late, the store is asked.
//   - A definition may change or go at any time. All that serves its instances
//     is made of one stored state of it (its source): requests under way finish
//     by the spec that they began with. Watches end, and their clients go on from
//     where they were with whoever serves them then.
//   - When a definition is deleted, watches of its instances give every DELETED,
//     on every server of the database, and then end.
//   - Instances are answered from the stored bytes wherever these are what a
//     decode would give. They are marked with the program, the storage version
//     and a hash of its schema (their Form); others are decoded, defaulted and
//     pruned by the definition of now.
//   - What a conversion webhook makes of a stored object is made once for each
//     version and change, a page of objects at a time, and shared by all readers
//     for up to a minute while it is in memory. An object that can't be converted hides no other.
//   - A definition costs little more than its stored bytes until it is used:
//     readers need a version's routes, and its schema only where they need
//     objects; writers need the compiled checks and the types of managed fields.
//     What was not used for some minutes is given up again. The documents of
//     OpenAPI are built when they are asked for, and their parts kept compressed.
//   - Deleting a definition walks its instances once, in pages.
//
// # Parts
//
// The table has each definition in its last state, without its schemas. Its
// instances make a version for each served version that is asked for: upstream's
// registry over a Store of our own, and the routes of package endpoints. The
// follower watches the definitions, fills the table, and keeps discovery and
// OpenAPI at what it has.
//
// # What the caller owes
//
// The same context values in requests as package endpoints. The store and the
// feed must be running before Run, which must be running for anything to be
// established.
//
// # Shutting down
//
// Cancel Run's context, before the loopback transport is closed. When Run has
// returned, nothing is done to the store any more: the workers of upstream's
// controllers can't be joined, but what they do is waited for, and what they
// begin afterwards fails.
package crd
