package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"byre/migrations"
	"byre/sqlstore/sqlite"
)

// locks returns the number of locks that other processes see on a file of this process.
func locks(t *testing.T, path string) (n int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	inode := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, "POSIX") && strings.Contains(line, fmt.Sprintf(" %d ", os.Getpid())) &&
			strings.Contains(line, inode) {
			n++
		}
	}
	return n
}

// No function that inspects the file may release SQLite's locks: a process loses all its
// locks on a file when it closes any descriptor of that file. Another process, such as a
// shell, would then delete the log because it seems to be the last one.
func TestLocks_StayWhileTheFileIsInspected(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer driver.Close()
	if locks(t, path) == 0 {
		t.Fatal("/proc/locks does not show SQLite's locks")
	}
	if err := driver.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Size(t.Context()); err != nil {
		t.Fatal(err)
	}
	if locks(t, path) == 0 {
		t.Fatal("Probe or Size has released the locks")
	}
	var inUse *migrations.InUseError
	if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); !errors.As(err, &inUse) {
		t.Fatal(err)
	}
	if locks(t, path) == 0 {
		t.Error("an attempt to open the database a second time has released the locks")
	}
}
