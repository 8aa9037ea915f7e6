package query

import (
	"time"

	"golang.org/x/sys/unix"
)

// niceness is what a query adds to the niceness of its thread, and slice how long that asks to run at a time.
const (
	niceness = 5
	slice    = 100 * time.Millisecond // the longest that Linux takes
)

// lowerPriority lowers the priority of the calling thread. A query runs as well without.
func lowerPriority() {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return
	}
	a.Nice, a.Runtime = min(a.Nice+niceness, 19), uint64(slice)
	_ = unix.SchedSetAttr(0, a, 0)
}
