//go:build !linux

package sqlite

import "os"

// allocate gives a file its size, and the space on the disk for it.
func allocate(file *os.File, size int64) error { return writeZeros(file, size) }

// birth returns 0: when the file was made is not known.
func birth(string) int64 { return 0 }
