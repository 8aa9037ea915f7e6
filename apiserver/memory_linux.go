package apiserver

import (
	"bufio"
	"errors"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseStart gives back the memory that only the start needed: the heap that it
// left as garbage, and the pages of the program's code and tables that it ran
// through once (schemes, routes, descriptions of types). What is still used of
// the latter comes back from the page cache at its next use.
func releaseStart() error {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		// start-end perms offset dev inode path
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[5] != program || strings.Contains(fields[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		// A private, read-only mapping of a file: dropping its pages loses nothing.
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED)
		if errno != 0 {
			return errno
		}
	}
	return lines.Err()
}
