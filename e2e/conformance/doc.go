// Package conformance runs upstream's conformance tests on byre: the end-to-end tests of
// k8s.io/kubernetes that are labelled Conformance, unchanged, as Ginkgo runs them elsewhere. "make
// conformance" builds them and runs this.
//
// byre runs the controllers and the scheduler in its process. There are no nodes: kwok simulates
// two, whose Pods are ready at once but have no containers. Left out are the tests that need
// containers or a network of Pods; needContainers has them, a reason for each group.
package conformance
