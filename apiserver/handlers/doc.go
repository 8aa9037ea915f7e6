// Package handlers serves REST storages over HTTP.
//
// It replaces k8s.io/apiserver/pkg/endpoints/installer.go: from a rest.Storage it derives
// the verbs and paths of a resource, the request scope that its handlers need, and the entry
// in discovery. The package write serves the verbs that change objects, and the package documents
// serves discovery and OpenAPI.
//
// # Parts
//
// A Resource is one resource or subresource of one group version: "pods",
// "pods/status". An API serves the resources of all versions of its groups, through one chi mux, and
// their discovery documents. A server of types that change at run time, such as that of custom
// resources, builds a new Resource for each change, and finds its handlers by Verbs. Nothing is
// registered globally, and Resource and API are immutable.
//
// # Reads from bytes
//
// The response of a GET, LIST or WATCH is made from the stored bytes and their
// representations, without upstream's handlers, where the resource's storage is a plain
// registry and the request asks for JSON, indented or not, protobuf, metadata or a table.
// All other requests, such as those for YAML, or with a shard selector, are served by
// upstream's handlers. Both give the same response; a test sends each request
// both ways and compares.
//
// A LIST from bytes is streamed, so its memory does not grow with the list. If reading
// fails after the first byte of the response was sent, the connection is aborted: a
// client never takes an incomplete list for a complete one.
//
// # The stack of a request
//
// GrowForFilters and GrowForHandler grow the stack of a fresh goroutine once, before a request uses it.
//
// What upstream does: nothing. A goroutine starts with a small stack; the Go runtime
// doubles it each time it overflows and copies every frame on it. A request runs on
// two fresh goroutines: the connection's, and the one that the timeout filter starts. By
// then dozens of frames have to be adjusted; this took a sixth of the processor time of a
// GET.
//
// What is done instead: the goroutine calls a function with a large frame while its
// stack is nearly empty, so that the runtime grows the stack once and copies almost
// nothing.
//
// What it relies on: the Go runtime checks a function's frame size on entry, and does
// not shrink a stack before the next garbage collection. TestGrow_HasTheSizeAskedFor fails
// when that changes.
//
// What it earns: a tenth of the processor time of the handler of a small Pod's
// create (BenchmarkCreate).
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
