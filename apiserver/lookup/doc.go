// Package lookup reads built-in objects in process: the ServiceAccounts, Pods,
// Secrets and Nodes that tokens are bound to, the Secrets of bootstrap tokens, the
// Services and EndpointSlices of webhooks and conversions, the Pods that admission plugins ask for.
//
// A look-up is no request. It passes no filter, so that it leaves no audit event
// and is not in the metrics of requests, and a client that is not authenticated
// cannot cause requests by what its credentials name. It starts nothing.
package lookup
