// Package apiserver assembles the server: it opens the store, makes the parts (access,
// built-in groups, discovery, health), joins them with the other servers of the delegation
// chain into one handler, and serves that until it is told to stop.
//
//	options.Options --Complete--> Config --New--> Server --Run--> exit
//
// Server.build (server.go) lists the parts in the order in which they are made, and
// Server.stages (stages.go) what runs, in the order in which it starts.
//
// # What is promised
//
//   - The port is bound before the slow part of a start; /readyz is 200 once
//     every verb works, including what the first start must write.
//   - Run returns nil after an ordered stop: that of package lifecycle, then the
//     controllers, the feed, the store, and the database.
//   - A part that fails stops the whole server, with that part's error: a
//     server without its feed or its writer must not look alive.
//
// # What the caller owes
//
// One Server a process: upstream's feature gates, metrics and logging are
// process-wide. The caller chooses the database and the other servers of the
// chain (aggregation, custom resources); see Config.
package apiserver
