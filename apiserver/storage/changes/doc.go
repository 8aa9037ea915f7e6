// Package changes reads the changes of a store as one user may see them: for the resource changes, and for
// queries of the past.
//
// Paths of fields have one grammar everywhere (Path): Compare finds the differences of two versions, and Leaves the
// last change of each field. Both name the elements of lists by their keys.
//
// Invariant: what Rights.Sees and Rights.Scope return depends on nothing but the answers of the authorizer
// about objects that have their names now. A namespace or a definition that is created again inherits no
// change of the one before.
package changes
