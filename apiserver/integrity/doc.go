// Package integrity checks the rows of a whole store against each other: objects against
// their keys, the undo log against the objects, and allocations against Services.
//
// It reads one snapshot, once, and keeps some 100 bytes in memory for each object and for
// each object that has changed. It changes nothing and starts no goroutine.
package integrity
