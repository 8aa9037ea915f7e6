// Package handlers serves REST storages over HTTP.
//
// It replaces k8s.io/apiserver/pkg/endpoints/installer.go: from a rest.Storage it derives
// the verbs and paths of a resource, the request scope that its handlers need, and the entry
// in discovery. The package write serves the verbs that change objects.
//
// # Parts
//
// A Resource is one resource or subresource of one group version: "pods",
// "pods/status". A Version holds the resources of a group version and serves them
// through one chi mux. An API serves the versions of all built-in groups and their
// discovery documents. A server of types that change at run time, such as that of custom
// resources, builds a new Version for each change. Nothing is registered globally, and
// Resource, Version and API are immutable.
//
// # Reads from bytes
//
// The response of a GET, LIST or WATCH is made from the stored bytes and their
// representations, without upstream's handlers, where the resource's storage is a plain
// registry and the request asks for JSON, protobuf, metadata or a table. All other
// requests, such as those for YAML, for pretty printing, or with a shard selector, are
// served by upstream's handlers. Both give the same response; a test sends each request
// both ways and compares.
//
// A LIST from bytes is streamed, so its memory does not grow with the list. If reading
// fails after the first byte of the response was sent, the connection is aborted: a
// client never takes an incomplete list for a complete one.
//
// # What the caller owes
//
// The filter chain has set in the request's context what the handlers need:
// RequestInfo, the user, an audit context, a warning recorder and the time of receipt.
//
// # How it shuts down
//
// The package starts no goroutine and needs no shutdown. A watch ends when its request's
// context ends, or when the server signals its shutdown (request.ServerShutdownSignalFrom).
package handlers
