//go:build !linux

package memory

// dropProgramPages does nothing: only Linux has /proc/self/maps.
func dropProgramPages() error { return nil }
