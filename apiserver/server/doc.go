// Package apiserver assembles the server: it opens the store, makes the parts (access,
// built-in groups, discovery, health), joins them with the other servers of the
// delegation chain into one handler, and serves this handler until it is told to stop.
//
//	Options --Complete--> Config --New--> Server --Run--> exit
//
// Server.build (server.go) makes the parts. The constructor of each takes those that it needs:
// the network, the storage backend, the clients, access, the built-in API, the delegation chain,
// the controllers, the HTTP servers. Server.stages (stages.go) lists the components that run, in
// the order in which they start.
//
// # What is promised
//
//   - The port is bound before the slow part of a start. /readyz answers 200 once every
//     verb works and the objects that a first start must write are written.
//   - Run returns nil after an ordered stop: first what package lifecycle orders, then
//     the controllers, the feed, the store, and the database.
//   - A component that fails stops the whole server with the component's error, because
//     a server without its feed or its writer must not look healthy.
//
// # What the caller owes
//
// One Server a process: upstream's feature gates, metrics and logging are
// process-wide. The caller chooses the database and the other servers of the
// chain (aggregation, custom resources); see Config.
package server
