// Package delegation holds what the servers of the delegation chain agree on.
//
// The aggregator, the built-in API and the server of custom resources are three HTTP
// handlers in a row. Each answers the requests that are its own and passes all others
// on to its delegation target, as in kube-apiserver
// (cmd/kube-apiserver/app/server.go, CreateServerChain). They do not import each other:
// the assembly gives each of them the same Dependencies, and gets a Server back.
package delegation
