package filters

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/stack"
)

// withOuterRoom makes room for the filters up to the timeout, on the connection's
// goroutine.
func withOuterRoom(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stack.Some()
		handler.ServeHTTP(w, r)
	})
}

// withInnerRoom makes room for the filters behind the timeout and a verb's handler,
// on the timeout filter's goroutine. A long-running request has none and is left
// alone: thousands of idle watches add up, and what they need they get as they go.
func withInnerRoom(handler http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && !longRunning(r, info) {
			stack.Much()
		}
		handler.ServeHTTP(w, r)
	})
}
