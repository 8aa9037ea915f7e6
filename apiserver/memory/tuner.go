package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// By default the garbage collector runs when the heap has doubled, or after two minutes.
//
// While the server is busy it runs half as often: that takes a thirtieth less processor
// time, for a heap that is half as large again. When the server is idle again, the heap
// that the burst left is collected and returned to the system at once; the runtime would
// keep it for minutes.
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
	// collections, as GOGC has it.
	busyPercent    = 200
	defaultPercent = 100
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
	if err := releaseStartup(); err != nil {
		klog.V(2).InfoS("The memory of the start was not released", "err", err)
	}
	collector := gcPercent{defaultPercent}
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
			collector.set(busyPercent)
		case idle:
			collector.set(defaultPercent)
		case burstOver:
			collector.set(defaultPercent)
			debug.FreeOSMemory()
			observed.released(allocated())
		case moderate:
		}
	}
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

// gcPercent sets how much the heap may grow between two collections, unless the operator
// has set it by GOGC.
type gcPercent struct{ current int }

func (c *gcPercent) set(percent int) {
	if c.current == percent || os.Getenv("GOGC") != "" {
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
