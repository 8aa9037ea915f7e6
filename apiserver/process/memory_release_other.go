//go:build !linux

package process

// dropProgramPages does nothing: only Linux has /proc/self/maps.
func dropProgramPages() error { return nil }
