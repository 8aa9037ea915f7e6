package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// Tuning: the garbage collector is paced by what it scans.
//
// What upstream does: nothing. By default the collector runs when the heap has doubled, or
// after two minutes.
//
// What is done instead: the cost of a collection is what it scans, the part of the heap that
// may hold pointers. Most of a server's heap holds none: the values of objects and their
// representations are bytes. The heap therefore grows between two collections by a multiple of
// what is scanned, and not of all that is live: a server that holds 10,000 Pods in 200 MB scans 30 of them.
// With the default its heap grows to 400 MB, and what stays alive of it is scattered over
// pages that are never returned.
//
// While the server is busy the collector runs less often: the heap may grow by twice of what
// is scanned, and by busyGrowth at least, which is a few hundred requests' garbage more. When
// the server is idle again, the heap that the burst left is collected and returned to the
// system at once; the runtime would keep it for minutes. So are the pages of the program file
// that only the burst has used.
//
// What it relies on: the runtime lets the heap grow by GOGC percent of the live heap, the
// stacks and the global variables, and its metrics tell these sizes.
// TestPercent_IsHowTheRuntimeGrowsTheHeap fails when that changes.
//
// What it earns: BenchmarkTuner in cmd/byre compares it with a control whose GOGC is 100, while
// 10,000 objects of 8 kB are created and listed. It takes 7 to 9 percent less processor time;
// the peak of the resident set is 8 to 15 percent higher, and after the burst both are the
// same.
const (
	// observeInterval is the time between two observations.
	observeInterval = 500 * time.Millisecond
	// startupDelay is how long after readiness the start is taken to be over. The
	// controllers make their first round in it.
	startupDelay = 5 * time.Second
	// busyBytes is the least that a busy server allocates between two observations,
	// idleBytes the most that an idle one does. A server is idle after idleObservations
	// of these in a row.
	busyBytes        = 16 << 20
	idleBytes        = 512 << 10
	idleObservations = 4
	// worthBytes is how much must have been allocated since the last release for
	// another one to be worth its processor time.
	worthBytes = 64 << 20
	// busyPercent and defaultPercent are how much the heap may grow between two
	// collections, in percent of what is scanned.
	busyPercent    = 200
	defaultPercent = 100
	// minGrowth is the least that the heap may grow, in bytes, and minPercent the lowest
	// value that the collector is given. busyGrowth is the least of a busy server, but at
	// most a busyFraction of what the process may use.
	minGrowth    = 32 << 20
	busyGrowth   = 128 << 20
	busyFraction = 8
	minPercent   = 10
)

// Tune releases what the start needed once ready is closed and the controllers have made
// their first round, and then adapts the garbage collector to the load until ctx ends.
// A process calls it once. It returns nil.
func Tune(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(startupDelay):
	}
	release()
	collector := gcPercent{defaultPercent}
	busyLeast := leastBusyGrowth(Limit())
	var observed workload
	observed.released(allocated())
	tick := time.NewTicker(observeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch observed.observe(allocated()) {
		case busy:
			collector.set(readHeap().percent(busyPercent, busyLeast))
		case moderate, idle:
			collector.set(readHeap().percent(defaultPercent, minGrowth))
		case burstOver:
			release()
			collector.set(readHeap().percent(defaultPercent, minGrowth))
			observed.released(allocated())
		}
	}
}

// release returns memory to the system that is not in use.
func release() {
	if err := releaseUnused(); err != nil {
		klog.V(2).InfoS("Unused memory was not released", "err", err)
	}
}

// heap is what the last collection found, in bytes.
type heap struct {
	// live is what the heap's next size is reckoned from: the live heap, the stacks and
	// the global variables. scanned is the part of it that may hold pointers.
	live, scanned uint64
}

func readHeap() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/total:bytes"}, {Name: "/gc/scan/heap:bytes"}}
	metrics.Read(samples)
	live, scanned, ofHeap := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
	return heap{live + scanned - min(ofHeap, scanned), scanned}
}

// percent is the value of GOGC with which the heap grows by so many percent of what is
// scanned, but by least at least, in bytes.
func (h heap) percent(ofScanned int, least uint64) int {
	if h.live == 0 {
		return ofScanned
	}
	growth := max(h.scanned*uint64(ofScanned)/100, least)
	return min(max(int(growth*100/h.live), minPercent), ofScanned)
}

// leastBusyGrowth is the least growth of a busy server's heap where the process may use so
// many bytes; 0 says that there is no limit.
func leastBusyGrowth(limit int64) uint64 {
	if limit <= 0 {
		return busyGrowth
	}
	return min(busyGrowth, max(uint64(limit)/busyFraction, minGrowth))
}

// workload derives the load from how much the process allocates. The zero value is that
// of a process that has just started.
type workload struct {
	// lastObserved and lastReleased are how much had been allocated at the last
	// observation, and at the last release of memory.
	lastObserved, lastReleased uint64
	// idleFor counts the observations since the server was last not idle.
	idleFor int
}

// load is the result of an observation.
type load int

const (
	moderate load = iota
	busy
	idle
	// burstOver is idle after enough work to be worth a release.
	burstOver
)

// observe takes how much was ever allocated, in bytes.
func (w *workload) observe(allocated uint64) load {
	since := allocated - w.lastObserved
	w.lastObserved = allocated
	if since < idleBytes {
		w.idleFor++
	} else {
		w.idleFor = 0
	}
	switch {
	case since >= busyBytes:
		return busy
	case w.idleFor < idleObservations:
		return moderate
	case allocated-w.lastReleased > worthBytes:
		return burstOver
	}
	return idle
}

// released is called after memory was released, with how much was ever allocated.
func (w *workload) released(allocated uint64) {
	w.lastObserved, w.lastReleased = allocated, allocated
}

// gcPercent sets in percent how much the heap may grow between two collections, unless the operator
// has set it by GOGC.
type gcPercent struct{ current int }

func (c *gcPercent) set(percent int) {
	// The collector adapts to what is live by itself: a small change is not worth
	// stopping the world.
	if abs := max(percent-c.current, c.current-percent); abs*4 < c.current || os.Getenv("GOGC") != "" {
		return
	}
	c.current = percent
	debug.SetGCPercent(percent) // which stops the world for a moment
}

// allocated is how much the process has ever allocated on its heap, in bytes.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
