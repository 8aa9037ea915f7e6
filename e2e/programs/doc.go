// Package programs builds the programs that the end-to-end tests and the
// benchmark run: byre itself, and kubectl, kube-apiserver and etcd at the
// versions that go.mod pins.
//
// Everything is built by the go command, from modules; a second build of the
// same source costs about a second.
package programs
