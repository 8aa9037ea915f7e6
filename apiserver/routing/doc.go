// Package routing finds where the Services are that this server calls: those of
// webhooks, of conversions, and of aggregated API servers. All follow one rule, as
// in kube-apiserver.
//
// It starts nothing. A Resolver is safe for concurrent use as far as its listers are.
package routing
