package replication

import "golang.org/x/sys/unix"

// bootClock goes on while the machine is suspended.
const bootClock = unix.CLOCK_BOOTTIME
