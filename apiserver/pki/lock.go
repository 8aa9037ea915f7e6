package pki

import (
	"fmt"
	"os"
	"syscall"
)

// lock waits until no other process is in the directory, and returns what lets
// the next one in. The lock is the directory's own: it leaves no file behind,
// and a process that dies gives it back.
func lock(dir string) (unlock func(), err error) {
	handle, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(handle.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { handle.Close() }, nil
}
