// Package discovery tells clients what is served: the documents at /api, /apis,
// /apis/<group> and /apis/<group>/<version>, and the aggregated document that
// newer clients ask for at the first two (KEP-3352).
//
// A Registry holds what is known of every group version, whoever serves it:
// built-in groups, custom resources, aggregated API servers. Group versions come
// and go at run time; every change shows in all documents at once. What several
// serve is shown as the one whose Origin takes precedence describes it, which is
// also the one that answers requests.
//
// A Registry starts no goroutine and is safe for concurrent use.
package discovery
