// Package envtest starts byre for tests: a whole Kubernetes API server, in a process of
// its own, ready in less than a second.
//
//	func TestReconciler(t *testing.T) {
//		config := envtest.Start(t)
//		...
//	}
//
// Each call starts another server with an empty database and a port of its own, so
// tests may run in parallel. The server ends with its test. It also ends if the test's
// process is killed; its files are deleted then. It runs byre's controllers, which
// delete namespaces and the dependents of deleted owners, and create service accounts.
// "--controllers=" turns the controllers off. Every other flag of "byre serve" may be
// given too.
//
// Start runs the program that the variable BYRE_BINARY names. Without the variable it
// runs the byre on the PATH. Without that, it runs the one that the go command builds
// for a module whose go.mod has the line "tool byre/cmd/byre" (go get -tool
// byre/cmd/byre). The module's go.mod names a checkout of byre by a replace directive:
// the path byre has no host to download it from.
//
// Tests that are written for controller-runtime's own envtest need no change: see "byre
// envtest-assets".
package envtest
