package sqlstore

import (
	"runtime"
	"time"
)

// Gathering: before it begins a transaction, the writer yields the processor to
// goroutines that are about to queue a write.
//
// What upstream does: an etcd server appends each proposal to its Raft log when it comes; what
// arrives during an fsync shares the next one. Nothing waits on purpose.
//
// What is done instead: a push makes the writer runnable, and Go's scheduler runs a
// goroutine that was just made runnable before all others of its processor. Where requests
// keep every processor busy, each write would get a transaction and an fsync of its own,
// while other writers wait for a processor. So the writer yields again and again, until a
// yield has brought no further write.
//
// What it relies on: runtime.Gosched puts the caller at the end of the global run queue,
// behind every goroutine that can run. If that changes, batches get smaller and
// TestStore_BusyWritersShareTransactions fails; nothing else breaks.
//
// What it earns: on SQLite and two busy processors, 11 to 14 % of the processor time of a
// write with 8 writers, and 4 to 6 % with 64 (BenchmarkGather). A single writer pays one call
// of an idle scheduler.

// gatherTime bounds gathering. It is about the time that a transaction's fsync takes.
const gatherTime = 5 * time.Millisecond

// yield gives the processor to every other goroutine that can run.
func yield() { runtime.Gosched() }

// gather calls yield for as long as each call brings further writes, and until the queue
// has a number of writes. Where a processor is idle, or nobody else writes, it returns
// after one call. A write never waits for much longer than gatherTime, however many others
// come.
func (q *queue) gather(writes int, clock func() time.Time, yield func()) {
	end := clock().Add(gatherTime)
	for before, now := 0, q.len(); before < now && now < writes && clock().Before(end); {
		yield()
		before, now = now, q.len()
	}
}
