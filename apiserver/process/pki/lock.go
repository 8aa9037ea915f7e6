package pki

import (
	"fmt"
	"os"
	"syscall"
)

// lock locks the directory against other processes. It waits until no other process holds
// the lock. The lock is a flock on the directory itself: it needs no lock file, and the
// kernel releases it when the process dies.
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
