// Package changes reads the changes of a store as one user may see them: for the resource changes, and for
// queries of the past.
//
// Invariant: what Rights.Sees and Rights.Scope return depends on nothing but the answers of the authorizer
// about objects that have their names now. A namespace or a definition that is created again inherits no
// change of the one before.
package changes
