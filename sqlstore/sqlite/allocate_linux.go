package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives a file its size, and the space on the disk for it.
func allocate(file *os.File, size int64) error {
	err := unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return writeZeros(file, size)
	}
	return err
}
