// Package apiserver is the server around the chain: it turns flags into a
// configuration, opens the store, joins the packages (storage, built-in
// groups, access, discovery, health) into one handler, and serves it until told to stop.
//
//	Options --Complete--> Config --New--> Server --Run--> exit
//
// # What is promised
//
//   - A wrong flag is one line, and nothing has been touched before every flag
//     was found right.
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
