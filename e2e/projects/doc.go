// Package projects puts what well-known projects ship to byre and to a stock
// kube-apiserver: their CustomResourceDefinitions and their own sample objects,
// through kubectl, as their users do. What kubectl then prints must be the same.
//
// A project is a Go module at a fixed version with a fixed checksum. No code of it
// is built, so it is in no go.mod: the go command fetches the module alone, none of
// its dependencies, into the module cache.
package projects
