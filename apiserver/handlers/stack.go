// Package stack grows the stack of a fresh goroutine once, before a request uses it.
//
// What upstream does: nothing. A goroutine starts with a small stack; the Go runtime
// doubles it each time it overflows and copies every frame on it. A request runs on
// two fresh goroutines: the connection's, and the one that the timeout filter starts. By
// then dozens of frames have to be adjusted; this took a sixth of the processor time of a
// GET.
//
// What is done instead: the goroutine calls a function with a large frame while its
// stack is nearly empty, so that the runtime grows the stack once and copies almost
// nothing.
//
// What it relies on: the Go runtime checks a function's frame size on entry, and does
// not shrink a stack before the next garbage collection. TestGrow_HasTheSizeAskedFor fails
// when that changes.
//
// What it earns: a tenth of the processor time of the handler of a small Pod's
// create (BenchmarkCreate in apiserver/handlers).
package handlers

// The frame sizes in bytes. Together with a few more frames each is just below a power
// of two, which is what the runtime rounds a stack to.
const (
	filtersFrame = 6 << 10
	handlerFrame = 28 << 10
)

// GrowForFilters grows the caller's stack to 8 KiB, enough for the filter chain.
func GrowForFilters() { filtersSize(false) }

// GrowForHandler grows the caller's stack to 32 KiB, enough for a verb's handler and
// the storage below it.
func GrowForHandler() { handlerSize(false) }

// The runtime grows the stack for a function's whole frame when the function is entered. The
// array is therefore never used: clearing it would cost time.

//go:noinline
func filtersSize(used bool) {
	if used {
		var frame [filtersFrame]byte
		use(frame[:])
	}
}

//go:noinline
func handlerSize(used bool) {
	if used {
		var frame [handlerFrame]byte
		use(frame[:])
	}
}

//go:noinline
func use([]byte) {}
