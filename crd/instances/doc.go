// Package instances serves the instances of one CustomResourceDefinition: upstream's
// registry of custom resources over package storage, and the routes of package
// endpoints.
//
// # What is promised
//
//   - Handlers serve the instances by one spec. Schemas, validation, the types of
//     managed fields and the Encoding of the records derive from one stored state of the
//     definition, its Source. Requests in flight finish by the spec they began with.
//   - Everything is made when a request first needs it. Release drops compiled
//     validation, types and schemas that no request has used since its last call.
//   - Answers are made as package crd promises: from the stored bytes where these are what a
//     decode would give, and each stored value is converted once for all readers.
//
// Goroutines run only while conversions are made again before they expire. Environment.Drain
// joins them.
package instances
