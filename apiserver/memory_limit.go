package apiserver

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"byre/watch/representation"
)

// stateFraction is the part of the memory limit that the values of resources may
// take that nobody watches (watch.Options.StateBytes): what is derived from them,
// requests, and garbage that waits to be collected need the rest.
const stateFraction = 4

// The representations of objects get a part of the memory limit, within bounds.
const (
	representationFraction = 16
	minRepresentationBytes = 32 << 20
	maxRepresentationBytes = 256 << 20
)

// representationBytes is the budget of the cache of representations: what the flag says,
// or a part of the memory limit, which is 0 where there is none.
func representationBytes(flag, limit int64) int64 {
	switch {
	case flag > 0:
		return flag
	case limit == 0:
		return representation.DefaultBytes
	}
	return min(max(limit/representationFraction, minRepresentationBytes), maxRepresentationBytes)
}

// memoryLimit is what the process may use, in bytes: the lower one of GOMEMLIMIT
// and its control group's limit. It is 0 where there is none.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1) // which only tells it
	if groups, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		limit = min(limit, groupLimit(os.DirFS("/"), string(groups)))
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// groupLimit is the lowest limit of the control groups that /proc/self/cgroup
// names, of version 2 or 1, and of those around them. In a container the names
// may be those of the host, and only the outermost group be there.
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
			// What can't be read or is "max" is no limit.
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
