// Package filters is the gate in front of every route: the chain of HTTP
// handlers that a request walks through before a verb sees it.
//
// The filters themselves come from k8s.io/apiserver; this package fixes their
// order, which is that of DefaultBuildHandlerChain (k8s.io/apiserver/pkg/server,
// not imported because it brings a whole server with it). A test reads that
// function's source and compares.
//
// What the chain promises to the handlers behind it: the request's context
// carries a RequestInfo, the time of receipt, an audit context, a user, a
// warning recorder, latency trackers and, unless the request is long-running, a
// deadline; the user was authenticated, and was authorized for what RequestInfo
// says. A panic behind it ends the request and never the process.
//
// The caller owns all goroutines: Chain starts none; FlowControl.Run runs
// priority and fairness until its context ends. At shutdown the caller closes
// the channels of Lifecycle in order, then waits on Requests and Watches.
package filters
