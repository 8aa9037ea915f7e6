// Package filters builds the chain of HTTP filters that a request passes before its route.
//
// The filters are those of k8s.io/apiserver. Their order is that of
// DefaultBuildHandlerChain in k8s.io/apiserver/pkg/server. That function is not called,
// because it takes the configuration of the generic API server. TestChain_OrderIsUpstreams reads the function's source
// and compares.
//
// The chain promises to the handlers inside it:
//   - The request's context has a RequestInfo, the time of receipt, an audit context, a
//     user, a warning recorder and latency trackers. Unless the request is long-running,
//     the context has a deadline.
//   - The user is authenticated, and authorized for the action in RequestInfo.
//   - A panic of a handler ends its request and not the process.
//
// Chain starts no goroutine. The caller runs FlowControl.Run, which ends with its context.
// At shutdown the caller closes the channels of Lifecycle in the order of upstream's
// lifecycle signals, then waits for NonLongRunningRequests and WatchRequests.
package filters
