// Package discovery serves the discovery documents: those at /api, /apis, /apis/<group>
// and /apis/<group>/<version>, and the aggregated documents that newer clients request at
// /api and /apis (KEP-3352).
//
// A Registry holds every group version and its resources: built-in groups, custom
// resources and aggregated API servers. Group versions are added and removed at run time;
// each change is visible in all documents at once. If several servers have the same group
// version, the documents show the one whose Origin takes precedence, which is also the
// one that answers requests.
//
// A Registry starts no goroutine, needs no shutdown, and is safe for concurrent use.
package documents
