package process

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// MemoryLimit returns how much memory the process may use, in bytes: the lower one of GOMEMLIMIT
// and its control group's limit. It is 0 where there is no limit.
func MemoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1) // a negative limit only reads it
	if groups, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		limit = min(limit, groupLimit(os.DirFS("/"), string(groups)))
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// MachineMemory returns how much memory the machine has, in bytes; 0 if it does not tell.
func MachineMemory() int64 {
	var kilobytes int64
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		_, _ = fmt.Sscanf(string(info), "MemTotal: %d kB", &kilobytes) // the first line
	}
	return kilobytes << 10
}

// groupLimit is the lowest limit of the control groups, version 2 or 1, that
// /proc/self/cgroup names, and of their parents. In a container the names may be those
// of the host, while only the outermost group exists.
func groupLimit(root fs.FS, groups string) int64 {
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(groups) {
		// number:controllers:path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		switch {
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case fields[1] != "":
			continue
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			// A file that can't be read, or contains "max", is no limit.
			if text, err := fs.ReadFile(root, path.Join(mount, dir, file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
					limit = min(limit, n)
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}
