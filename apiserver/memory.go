package apiserver

import "runtime/metrics"

// The garbage collector runs when the heap has doubled, or after two minutes.
// What a burst of requests leaves would stay for that long.
const (
	// quietBytes is how much an idle server allocates between two looks, at most.
	quietBytes = 2 << 20
	// worthBytes is what must have been allocated for a collection to be worth
	// its time.
	worthBytes = 64 << 20
)

// workload tells from what is allocated when work is over. The zero value is of
// a process that has just begun.
type workload struct {
	// last and freed are what had been allocated when it was looked at last, and
	// when memory was given back last.
	last, freed uint64
}

// over says, of all that was ever allocated in bytes, whether the server has
// worked since memory was given back, and is quiet now.
func (w *workload) over(allocated uint64) bool {
	quiet := allocated-w.last < quietBytes
	w.last = allocated
	return quiet && allocated-w.freed > worthBytes
}

// done notes that memory was given back.
func (w *workload) done(allocated uint64) { w.last, w.freed = allocated, allocated }

// allocated is what the process has allocated on its heap ever, in bytes.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
