package filters

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// A request runs on two fresh goroutines, its connection's and the one that the
// timeout filter starts. Their stacks begin small and are copied each time they
// prove too small, by then with dozens of frames to adjust: that took a sixth of
// the processor time of a GET. Growing once, while there is next to nothing to
// copy, takes almost none.

// How much room is made, in bytes: what the filters up to the timeout use, and
// what those behind it and a verb's handler use. With a few frames more, each is
// just below a power of two, which is what a stack's size is.
const (
	outerRoom = 6 << 10
	innerRoom = 28 << 10
)

// withOuterRoom makes room on the connection's goroutine.
func withOuterRoom(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		makeOuterRoom()
		handler.ServeHTTP(w, r)
	})
}

// withInnerRoom makes room on the timeout filter's goroutine. A long-running
// request has none and is left alone: thousands of idle watches add up, and
// what they need they get as they go.
func withInnerRoom(handler http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && !longRunning(r, info) {
			makeInnerRoom()
		}
		handler.ServeHTTP(w, r)
	})
}

// Each of these has returned, and its frame is free to be used, before the
// handler runs.

//go:noinline
func makeOuterRoom() {
	var room [outerRoom]byte
	touch(room[:])
}

//go:noinline
func makeInnerRoom() {
	var room [innerRoom]byte
	touch(room[:])
}

// touch keeps the compiler from finding out that room is not used.
//
//go:noinline
func touch([]byte) {}
