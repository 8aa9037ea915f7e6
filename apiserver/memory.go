package apiserver

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// The garbage collector runs when the heap has doubled, or after two minutes. A busy
// server has it run half as often: a thirtieth less processor time for a heap that is
// half as large again. What a burst of requests leaves is given back when it is over, as it
// would stay for those minutes otherwise.
const (
	// busyBytes is how much a busy server allocates between two looks, at least,
	// and quietBytes how much an idle one does, at most. It is quiet after quietLooks
	// of these.
	busyBytes  = 16 << 20
	quietBytes = 512 << 10
	quietLooks = 4
	// worthBytes is what must have been allocated for a collection to be worth
	// its time.
	worthBytes = 64 << 20
	// busyPercent and usualPercent are how much the heap may grow, as GOGC has it.
	busyPercent  = 200
	usualPercent = 100
)

// workload tells from what is allocated how much there is to do. The zero value is
// of a process that has just begun.
type workload struct {
	// last and freed are what had been allocated when it was looked at last, and
	// when memory was given back last.
	last, freed uint64
	// idle counts the looks since the server had something to do.
	idle int
}

// load is what a look at a workload finds.
type load int

const (
	usual load = iota
	busy
	quiet
	// over is quiet after work: the time to give memory back.
	over
)

// look takes what was ever allocated, in bytes.
func (w *workload) look(allocated uint64) load {
	since := allocated - w.last
	w.last = allocated
	if since < quietBytes {
		w.idle++
	} else {
		w.idle = 0
	}
	switch {
	case since >= busyBytes:
		return busy
	case w.idle < quietLooks:
		return usual
	case allocated-w.freed > worthBytes:
		return over
	}
	return quiet
}

// done notes that memory was given back.
func (w *workload) done(allocated uint64) { w.last, w.freed = allocated, allocated }

// collector tells the garbage collector how much the heap may grow between two
// collections, unless the operator has told it by GOGC.
type collector struct {
	percent int
}

func (c *collector) set(percent int) {
	if c.percent == percent || os.Getenv("GOGC") != "" {
		return
	}
	c.percent = percent
	debug.SetGCPercent(percent) // which stops the world for a moment
}

// allocated is what the process has allocated on its heap ever, in bytes.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
