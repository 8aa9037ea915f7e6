//go:build !linux

package apiserver

import "runtime/debug"

// releaseStart gives back the heap that the start left as garbage.
func releaseStart() error {
	debug.FreeOSMemory()
	return nil
}
