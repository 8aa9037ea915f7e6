// Package rbac provides listers of the four RBAC resources that are never older than
// the watch feed.
//
// Invariant: a lister returns the objects of a revision that is at least the feed's
// revision at the time of the call. A write that this replica has acknowledged
// therefore affects its next request; a write on another replica affects this one as
// soon as its feed has the change.
//
// The RBAC authorizer lists every binding on every request, so decoding the objects
// on each call is too slow. An informer keeps them decoded, but lags behind writes.
// Listers instead compares the feed's revision with the revision it last read. If the
// feed is ahead, Listers first reads the changes. It decodes only objects whose
// revision it does not hold, because a revision identifies one state of one object.
//
// Listers starts no goroutine and needs no shutdown. The returned objects are shared;
// the caller must not modify them.
package auth
