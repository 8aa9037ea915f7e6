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
