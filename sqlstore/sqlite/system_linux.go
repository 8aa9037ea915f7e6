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

// birth returns when a file was made, in nanoseconds since 1970; 0 if the file system or the kernel
// does not tell.
func birth(path string) int64 {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &stat); err != nil || stat.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return stat.Btime.Sec*1e9 + int64(stat.Btime.Nsec)
}
