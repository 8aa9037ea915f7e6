// Package documents serves the discovery documents and the OpenAPI documents of all servers of the
// delegation chain: of the built-in API, of custom resources and of aggregated API servers.
//
// # Discovery
//
// Discovery serves the documents at /api, /apis, /apis/<group> and /apis/<group>/<version>, and the
// aggregated documents that newer clients request at /api and /apis (KEP-3352).
//
// It holds every group version and its resources. Group versions are added and removed at run time;
// each change is visible in all documents at once. If several servers have the same group
// version, the documents show the one whose Origin takes precedence, which is also the
// one that answers requests.
//
// # OpenAPI
//
// OpenAPI serves the documents at /openapi/v2 and /openapi/v3. Each server contributes a Source. The
// servers of this process describe their routes as Operations of a Root, from which Models build the
// documents with the builders of k8s.io/kube-openapi, so that clients get the documents that
// kube-apiserver would serve. The Source of an aggregated API server has that server's documents.
//
// A document is built when a client requests it first. OpenAPI keeps only the
// compressed bytes: the tree that a document is built from is many times its size and is
// released after encoding. Documents of OpenAPI v2, which describe all groups at once, are
// merged as text.
//
// # What the callers owe
//
// A server calls Discovery.Add and Remove, and OpenAPI.Set and Remove, whenever its group versions or
// their routes change. It does not modify what it has passed. The functions of a Source do not wait
// for the network, because requests wait for them.
//
// Both types are safe for concurrent use, start no goroutine, and need no shutdown.
package documents
