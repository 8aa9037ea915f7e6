// Package rbac keeps the RBAC objects decoded, exactly as fresh as the store.
//
// An authorizer asks for every binding on every request, so they can't be decoded
// each time; an informer would have them decoded, but late. Tables does neither:
// before each look-up it compares the feed's revision with the one it last saw and,
// if there are changes, takes them in first, decoding only objects it hasn't seen
// (a revision names one state of one object, once and for all). A write that was
// acknowledged on this replica is therefore in force on its next request; a write on
// another replica, as soon as this one's feed has it.
//
// Tables starts no goroutine and has nothing to shut down. Objects it returns are
// shared and must not be changed.
package rbac
