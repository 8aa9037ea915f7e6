// Package stack makes room on the stacks of fresh goroutines.
//
// A stack begins small and is copied each time it proves too small, by then with
// dozens of frames to adjust. A request runs on up to three fresh goroutines: its
// connection's, the one that the timeout filter starts and, if it writes, the one
// that its handler is finished on. Their copying took a sixth of the processor time
// of a GET. A stack that grows once, while there is next to nothing to copy, takes
// almost none.
package stack

// What is asked for, in bytes. With a few frames more, each is just below a power
// of two, which is what a stack's size is.
const (
	some = 6 << 10
	much = 28 << 10
)

// Some makes room for filters: the caller's stack has 8 KiB from here on.
func Some() { haveSome(false) }

// Much makes room for a handler and the storage below it: 32 KiB.
func Much() { haveMuch(false) }

// A function's frame is made for all that it may need, when it is called. So the
// room is there, and nobody has spent time on clearing it.

//go:noinline
func haveSome(used bool) {
	if used {
		var room [some]byte
		use(room[:])
	}
}

//go:noinline
func haveMuch(used bool) {
	if used {
		var room [much]byte
		use(room[:])
	}
}

//go:noinline
func use([]byte) {}
