// Package projects applies what well-known projects ship to byre and to a stock
// kube-apiserver: their CustomResourceDefinitions and their own sample objects, through
// kubectl, as their users do. kubectl must then print the same for both.
//
// A project is a Go module at a fixed version with a fixed checksum. The tests build none
// of its code, so no go.mod names it: the go command downloads the module into the module
// cache, without its dependencies.
package projects
