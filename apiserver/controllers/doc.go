// Package controllers runs kube-controller-manager's controllers inside the server. The
// essential ones always run: without them an API server alone cannot delete a namespace,
// collect garbage, or create the default service accounts. The others start with the
// first object that they work on, and pause while a kube-controller-manager leads (class,
// in descriptor.go). The package can also run kube-scheduler's scheduler.
//
// # What it promises
//
// The controllers are upstream's, with upstream's names and aliases. The constructors of
// kube-controller-manager build them, but for those where this server differs (ownController). The
// syntax of --controllers is that of kube-controller-manager. The controllers reach the server
// through the API client in Config. The garbage collector is the exception: it reads the
// resources that this server stores directly from the store (graph.go).
//
// If several servers share a database (Config.Shared), only the server that holds
// the Lease runs the controllers. A server that sees another one hold the Lease, or can't renew it,
// stops its controllers at once and waits for the Lease again.
//
// # What the caller owes
//
// The server answers requests of Config.ClientConfig while Run runs.
//
// # How it shuts down
//
// When Run's context ends, Run stops the controllers, waits for them and their informers
// to end, and releases the lease.
package controllers
