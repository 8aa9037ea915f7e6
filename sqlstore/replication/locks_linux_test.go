package replication_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// expectSharedLock fails if other processes see no lock of this process on the file.
func expectSharedLock(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	inode, process := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino), fmt.Sprintf(" %d ", os.Getpid())
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, "POSIX") && strings.Contains(line, process) && strings.Contains(line, inode) {
			return
		}
	}
	t.Error("SQLite's shared lock of the file is gone: a shell would delete the log")
}
