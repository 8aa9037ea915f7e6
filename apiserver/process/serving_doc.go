// Package serving binds the server's ports. It holds the serving certificates and the
// HTTP servers.
//
// The bounds of a connection (header size, timeouts, streams) are those of
// k8s.io/apiserver/pkg/server/secure_serving.go. Constructors start nothing but the
// listening itself: a client that connects before the HTTP server runs waits in the
// listener's queue.
package process
