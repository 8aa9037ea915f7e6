// Package openapi serves the OpenAPI v2 and v3 documents of the API.
//
// The servers of the delegation chain describe their routes as Operations. This package
// builds documents from these with the builders of k8s.io/kube-openapi, so that clients
// get the documents that kube-apiserver would serve.
//
// A document is built when a client requests it first. The Service keeps only the
// compressed bytes: the tree that a document is built from is many times its size and is
// released after encoding. Documents of OpenAPI v2, which describe all groups at once, are
// merged as text.
//
// A Service is safe for concurrent use, starts no goroutine, and needs no shutdown. The
// caller calls Set and Remove when the routes of a server change.
package documents
