// Package endpoints turns REST storages into HTTP.
//
// It does for byre what k8s.io/apiserver/pkg/endpoints/installer.go does for
// kube-apiserver: from a rest.Storage it derives the verbs that a resource
// has, the paths they live at, the request scope that upstream's verb handlers
// need, and the entry that discovery shows. The verb handlers themselves are
// upstream's (k8s.io/apiserver/pkg/endpoints/handlers), so decoding, defaulting,
// admission, patching, apply and managed fields behave as Kubernetes does.
//
// # Parts
//
// A Resource is one resource or subresource of one group version: "pods",
// "pods/status". A Version collects the resources of a group version and
// serves them through one chi mux. An API joins the versions of all built-in
// groups with their discovery documents. Resource and Version are usable alone:
// whoever serves types that come and go at run time builds a Version from
// unstructured storages and swaps the handler; nothing is registered globally,
// and a Version never changes once made.
//
// # Reads from bytes
//
// GET, LIST and WATCH whose answer is plain JSON in the version that is stored
// are written from the stored bytes, without decoding an object. Everything
// else (another version, a table, protobuf, YAML, pretty printing, a storage
// that decorates what it reads) goes through upstream's handlers. Both ways
// answer the same document; a test sends each request down both and compares.
//
// A LIST from bytes streams: memory does not grow with the list. If reading
// breaks after the first byte went out, the connection is aborted: a broken
// list never looks like a shorter one.
//
// # What the caller owes
//
// The filters in front must have put into the request's context what upstream's
// handlers rely on: RequestInfo, the user, an audit context, a warning recorder
// and the received timestamp. An API starts no goroutine and needs no shutdown;
// watches end when their request's context does or when the server signals its
// shutdown (request.ServerShutdownSignalFrom).
package endpoints
