// Package lifecycle names the moments of a server's life and runs its shutdown in
// order.
//
// The names, and what waits for what, are those of k8s.io/apiserver
// (pkg/server/lifecycle_signals.go and GenericAPIServer.RunWithContext).
package process
