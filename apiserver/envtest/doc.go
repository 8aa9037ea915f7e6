// Package envtest starts byre for tests: a whole Kubernetes API server, in a process of
// its own, ready in less than a second.
//
//	func TestReconciler(t *testing.T) {
//		config := envtest.Start(t)
//		...
//	}
//
// Each call starts another server with an empty database, on a port of its own, so tests
// may run in parallel. The server ends with its test, and with the test's process if that
// is killed; its files are deleted then. It runs byre's controllers: namespaces are
// deleted, owners take their dependents with them, and service accounts are made.
// "--controllers=" turns them off, and every other flag of "byre serve" may be given too.
//
// Start runs the program that the variable BYRE_BINARY names; without it, the byre on the
// PATH; without that, the one that the go command builds for a module whose go.mod has
// the line "tool byre/cmd/byre" (go get -tool byre/cmd/byre).
//
// Tests that are written for controller-runtime's own envtest need no change: see "byre
// envtest-assets".
package envtest
