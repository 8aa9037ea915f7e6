// Package lookup reads built-in objects directly from the stores of this process.
// Authentication reads the objects that tokens are bound to and the Secrets of
// bootstrap tokens. Admission plugins read Pods. Service resolvers read Services and
// EndpointSlices.
//
// Such a read is not a request: it passes no filter, makes no audit event, and is not
// counted in the metrics of requests. A client that is not authenticated therefore
// cannot cause requests by naming objects in its credentials. Upstream's plugins that
// need a clientset or informers get those of the loopback transport.
//
// The package starts no goroutine and needs no shutdown.
package storage
