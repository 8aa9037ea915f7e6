//go:build !linux

package sqlite

import "os"

// allocate gives a file its size, and the space on the disk for it.
func allocate(file *os.File, size int64) error { return writeZeros(file, size) }
