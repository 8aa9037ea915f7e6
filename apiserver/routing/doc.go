// Package routing finds the address of a Service that this server calls: that of a
// webhook, of a conversion, or of an aggregated API server. One rule holds for all, as in
// kube-apiserver.
//
// It starts nothing. A Resolver is safe for concurrent use if its listers are.
package routing
