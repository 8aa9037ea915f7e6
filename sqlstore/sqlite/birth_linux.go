package sqlite

import "golang.org/x/sys/unix"

// birth returns when a file was made, in nanoseconds since 1970; 0 if the file system or the kernel
// does not tell.
func birth(path string) int64 {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &stat); err != nil || stat.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return stat.Btime.Sec*1e9 + int64(stat.Btime.Nsec)
}
