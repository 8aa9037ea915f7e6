// Package controllers runs those of kube-controller-manager's controllers
// inside the server without which an API server alone is of little use: a
// namespace could not be deleted, nothing would be garbage collected, no
// service account would exist.
//
// # What is promised
//
// The controllers are upstream's, under upstream's names and aliases, chosen
// in the syntax of kube-controller-manager's --controllers. They reach the
// server through the client they are given; only the garbage collector, which
// watches everything, is told of what is stored by the store.
//
// Where several servers share a database (Config.Lease is set), one of them
// runs the controllers at a time: whoever holds the lease. A server that loses
// it stops its controllers and stands by.
//
// # Shutting down
//
// Cancel Run's context. Run stops the controllers, joins them and their
// informers, and gives the lease back.
package controllers
