// Package conformance makes upstream's end-to-end tests a dependency, whose go.mod lacks the
// versions of the modules in its staging directory. Nothing imports it.
package conformance

// The tests themselves are in _test.go files of this package.
import _ "k8s.io/kubernetes/test/e2e"
