package filters

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/handlers"
)

// withFilterStack grows the stack of the connection's goroutine, which runs the filters
// up to the timeout.
func withFilterStack(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.GrowForFilters()
		handler.ServeHTTP(w, r)
	})
}

// withHandlerStack grows the stack of the timeout filter's goroutine, which runs the
// filters inside the timeout and the handler of the verb. It does not grow the stacks of
// long-running requests: thousands of idle watches would keep that memory.
func withHandlerStack(handler http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && !longRunning(r, info) {
			handlers.GrowForHandler()
		}
		handler.ServeHTTP(w, r)
	})
}
