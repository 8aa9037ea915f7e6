// Package delegation holds the interface between the servers of the delegation chain.
//
// The aggregator, the built-in API and the server of custom resources are three HTTP
// handlers in a row. Each serves its own requests and passes all others on to its
// delegation target, as in kube-apiserver (cmd/kube-apiserver/app/server.go,
// CreateServerChain). They do not import each other: the assembly makes each Server
// with the same Dependencies.
package process
