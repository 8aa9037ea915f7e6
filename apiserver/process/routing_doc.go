// Package routing resolves the Services that this server calls: those of admission
// webhooks, conversion webhooks and aggregated API servers. One rule holds for all, as
// in kube-apiserver.
//
// The package starts no goroutine. A Resolver is safe for concurrent use if its listers
// are.
package process
