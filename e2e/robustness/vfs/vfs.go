package vfs

import (
	"sync/atomic"
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
	// observer is called before each change of a file.
	observer atomic.Pointer[func(path string)]
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

// Fail makes every operation of a kind fail from now on.
func Fail(f Fault) { fault.Store(&f) }

// Clear ends the fault that Fail set, and returns how many operations have failed so far.
func Clear() int64 {
	fault.Store(nil)
	return failed.Load()
}

// LoseUnsynced makes PowerFails lose some of what was written and not synced. The caller
// calls it before the first file is opened. A kill -9 of the process loses nothing.
func LoseUnsynced() { loses.Store(true) }

// IgnoreSync makes every sync succeed without effect, as on a broken disk.
func IgnoreSync() { ignores.Store(true) }

// FailPowerAfter calls PowerFails before the change of a file that follows n others: a
// write, a truncation, a sync, the removal of a file.
func FailPowerAfter(n int64) { left.Store(n + 1) }

// Observe makes the VFS call f before each change of a file. Several goroutines may call f
// at the same time.
func Observe(f func(path string)) { observer.Store(&f) }

// passChange counts a change of a file.
func passChange(path string) {
	if left.Load() > 0 && left.Add(-1) == 0 {
		PowerFails()
	}
	if f := observer.Load(); f != nil {
		(*f)(path)
	}
}
