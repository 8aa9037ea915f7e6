package vfs

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
)

// Fault is an operation of the VFS that fails.
type Fault string

// The faults. A write that fails has written its first half. A short read returns half of
// what was asked for, and zeros, as a file does that ends there.
const (
	Read      Fault = "read"
	Write     Fault = "write"
	Sync      Fault = "sync"
	Busy      Fault = "busy"
	ShortRead Fault = "short read"
)

// The state of the process's one VFS.
var (
	fault   atomic.Pointer[Fault]
	failed  atomic.Int64
	loses   atomic.Bool
	ignores atomic.Bool
	// left is how many changes of files pass before the power fails.
	left atomic.Int64
)

func fails(f Fault) bool {
	now := fault.Load()
	if now == nil || *now != f {
		return false
	}
	failed.Add(1)
	return true
}

func losesUnsynced() bool { return loses.Load() }
func ignoresSync() bool   { return ignores.Load() }

// Register makes the VFS the default of the process, for databases that are opened from
// now on.
func Register() error { return register() }

// Fail has every operation of a kind fail from now on.
func Fail(f Fault) { fault.Store(&f) }

// Mend ends what Fail began, and returns how many operations have failed so far.
func Mend() int64 {
	fault.Store(nil)
	return failed.Load()
}

// LoseUnsynced keeps from now on what is not synced in the memory of the process: a kill
// -9 loses all of it, and PowerFails some of it.
func LoseUnsynced() { loses.Store(true) }

// IgnoreSync has every sync succeed and do nothing, as a broken disk does.
func IgnoreSync() { ignores.Store(true) }

// FailPowerAfter has the power fail before the change of a file that follows n others: a
// write, a truncation, a sync, the removal of a file.
func FailPowerAfter(n int64) { left.Store(n + 1) }

// passChange counts a change of a file.
func passChange() {
	if left.Load() > 0 && left.Add(-1) == 0 {
		PowerFails()
	}
}

// PowerFails ends the process, as kill -9 does. Of what was not synced, where
// LoseUnsynced holds it back, the disk gets some sectors, by chance.
func PowerFails() {
	// Nobody may open or close a file meanwhile, and nobody is alive afterwards.
	files.Lock()
	for path, f := range files.byPath {
		if path == "" {
			continue
		}
		if err := f.tear(); err != nil {
			fmt.Fprintln(os.Stderr, "vfs:", err)
		}
	}
	// A process can always send itself a signal.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
