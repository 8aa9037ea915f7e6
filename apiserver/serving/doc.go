// Package serving binds the server's ports, and holds the certificates and the HTTP
// servers behind them.
//
// The bounds of a connection (header size, time-outs, streams) are those of
// k8s.io/apiserver/pkg/server/secure_serving.go. Constructors start nothing but the
// listening itself: a client that connects before the HTTP server runs waits in the
// listener's queue.
package serving
