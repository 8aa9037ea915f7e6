// Package lifecycle names the moments of a server's life and runs its shutdown in
// order.
//
// The names, and what waits for what, are those of k8s.io/apiserver
// (pkg/server/lifecycle_signals.go and GenericAPIServer.RunWithContext). Each step
// of a shutdown says which signals it waits for and which one it gives when it is
// done; Run starts a step as soon as all that it waits for has been signaled.
//
//	                  ShutdownInitiated
//	                   |              |
//	AfterShutdownDelayDuration   PreShutdownHooksStopped
//	                   |              |
//	                NotAcceptingNewRequest ------------------.
//	                   |              |                      | unless
//	      NonLongRunningRequests   Watches                   | --shutdown-send-retry-after
//	             Drained           Drained                   |
//	                   |              |                      |
//	               InFlightRequestsDrained -- with it --> HTTPServerStoppedListening
//	                           |                             |
//	                           '----- ConnectionsClosed -----'
package lifecycle
