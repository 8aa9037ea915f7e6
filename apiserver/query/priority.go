package query

import goruntime "runtime"

// Priority: a query runs on a thread of its own, of lower priority than the server's others.
//
// What upstream does: its handlers are short, and no request computes for seconds.
//
// What is done instead: a query that reads 100,000 objects keeps a processor busy for a second. With as many queries as
// half the processors, what comes meanwhile shares the other half with its clients. A thread of lower priority computes
// with what they leave; and Linux 6.12 gives a thread whose slice is shorter the processor at once when it wakes.
//
// What it relies on: Linux knows a priority of each thread, and lets a thread lower its own. It can't be raised again;
// so the goroutine ends without giving its thread back, and Go ends the thread (TestQuery_LowersThePriorityOfItsThread).
// A thread that has a lock, or that the garbage collector waits for, may wait for a processor meanwhile: at niceness 5 it
// still gets a quarter of one that another thread wants.
//
// What it earns: the slowest hundredth of GETs beside queries (docs/sql.md; TestSQL_GetsBesideQueries measures it).
// A query pays for a new thread: BenchmarkAtLowPriority.

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
		lowerPriority()
		o.err = f()
	}()
	o := <-ended
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}
