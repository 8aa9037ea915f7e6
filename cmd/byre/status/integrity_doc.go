// Package integrity checks the rows of a whole store against each other: objects
// against their keys, the undo log against the objects, and allocations against
// Services.
//
// It reads one snapshot, once. It needs some 100 bytes of memory for each object, and
// as much for each object that has changes. It changes nothing and starts no goroutine.
package status
