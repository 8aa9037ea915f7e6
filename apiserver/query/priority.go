package query

import (
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// Priority: a query runs on a thread of its own, of lower priority than the server's others.
//
// What upstream does: its handlers are short, and no request computes for seconds.
//
// What is done instead: a query that reads 100,000 objects keeps a processor busy for a second. With as many queries as
// half the processors, what comes meanwhile shares the other half with its clients. A thread of lower priority computes
// with what they leave.
//
// What it relies on: Linux knows a priority of each thread, and lets a thread lower its own. It can't be raised again;
// so the goroutine ends without giving its thread back, and Go ends the thread (TestQuery_LowersThePriorityOfItsThread).
// A thread that has a lock, or that the garbage collector waits for, may wait for a processor meanwhile: at niceness 5 it
// still gets a quarter of one that another thread wants.
//
// What it earns: the slowest hundredth of GETs beside queries (docs/sql.md; TestSQL_GetsBesideQueries measures it).
// A query pays for a new thread: BenchmarkAtLowPriority.

// niceness is what a query adds to the niceness of its thread.
const niceness = 5

// atLowPriority calls f on a thread of lower priority, and returns what it returns. A panic of f is the caller's.
func atLowPriority(f func() error) error {
	type outcome struct {
		err      error
		panicked any
	}
	ended := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			o.panicked = recover()
			ended <- o
		}()
		goruntime.LockOSThread()
		if goruntime.GOOS == "linux" { // elsewhere it is the priority of the process
			if raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil { // 20 minus the niceness
				_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 20-raw+niceness) // the query runs as well without
			}
		}
		o.err = f()
	}()
	o := <-ended
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}
