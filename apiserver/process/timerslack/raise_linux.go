package timerslack

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// slack is the timer slack of a server.
const slack = time.Millisecond

// Raise executes the program again if its threads have less than slack, with the same
// arguments, environment and process ID. It returns if they have it, and where the kernel does
// not allow it. A process calls it before anything else.
func Raise() {
	if current() >= slack {
		return
	}
	path, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread() // the slack is the thread's
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0); err != nil {
		return
	}
	// A kernel may accept a slack and not set it. The program would execute itself for ever.
	if current() >= slack {
		// It returns only an error. The server then goes on with the slack that it has.
		_ = unix.Exec(path, os.Args, os.Environ())
	}
}

// current returns the slack of this thread; 0 if it is not known.
func current() time.Duration {
	nanoseconds, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return time.Duration(nanoseconds)
}
