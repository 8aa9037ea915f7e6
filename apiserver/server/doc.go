// Package server assembles the API server: it opens the store, makes the parts (access, built-in
// groups, discovery, health), joins them with the other servers of the delegation chain into one
// handler, and serves this handler until it is told to stop.
//
//	Options --Complete--> Completed --New--> Server --Run--> exit
//
// # Flags
//
// Options are the flags of "byre serve" as plain data. Complete validates all of them and sets what
// follows from them, before anything is opened, made or started. The error of an invalid flag is one
// line. A part of the server declares its own flags (auth.Options, process.ServingOptions, ...).
// kube-apiserver's flags that have no meaning here are refused with what to use instead, or ignored
// where byre runs under the name kube-apiserver (kubeapiserver.go). A test compares the flags with
// those of kube-apiserver.
//
// # Features
//
// An optional part is one Feature, which adds a Part to a server: history.go, sql.go, replication.go,
// backups.go, controllers.go. The list is in feature.go.
//
// # Assembly
//
// Server.build makes the parts. The constructor of each takes those that it needs: the network, the
// storage backend, the clients, access, the features, the built-in API, the delegation chain, the HTTP
// servers. Server.stages lists the components that run, in the order in which they start. Both
// are in server.go.
//
// # What is promised
//
//   - The port is bound before the slow part of a start. /readyz answers 200 once every
//     verb works and the objects that a first start must write are written.
//   - Run returns nil after an ordered stop: first the steps of process.Signals, then
//     the controllers, the feed, the store, and the database.
//   - A component that fails stops the whole server with the component's error, because
//     a server without its feed or its writer must not look healthy.
//
// # What the caller owes
//
// One Server a process: upstream's feature gates, metrics and logging are process-wide
// (Options.Apply). The caller chooses the database and the other servers of the chain (aggregation,
// custom resources); see Config. It calls Run, or Close for a Server that it does not run.
package server
