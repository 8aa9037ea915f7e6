// Package openapi serves the OpenAPI documents of the API, versions 2 and 3.
//
// Whoever serves paths describes them by Operations; this package turns these
// into documents with the builders of k8s.io/kube-openapi, so that what clients
// read is what kube-apiserver would give them.
//
// Nothing is built before it is asked for, and nothing but the finished,
// compressed bytes is kept: the tree of a document is many times its size and
// is dropped as soon as it has been written out.
package openapi
