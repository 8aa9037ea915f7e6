package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dropProgramPages drops the pages of the read-only mappings of the program file.
func dropProgramPages() error { return adviseProgram(unix.MADV_DONTNEED) }

// adviseProgram calls madvise for each read-only mapping of the program file.
func adviseProgram(advice int) error {
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
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), uintptr(advice)); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return lines.Err()
}
