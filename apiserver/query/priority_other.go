//go:build !linux

package query

// lowerPriority does nothing: elsewhere a thread has the priority of its process.
func lowerPriority() {}
