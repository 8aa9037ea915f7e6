// Package lifecycle names the moments of a server's life and runs its shutdown in
// order.
//
// The names, and which step waits for which, are those of k8s.io/apiserver
// (pkg/server/lifecycle_signals.go and GenericAPIServer.RunWithContext). Each step of a
// shutdown names the signals that it waits for and the signal that it sends when it is
// done. Run starts a step as soon as the signals that it waits for have been sent.
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
