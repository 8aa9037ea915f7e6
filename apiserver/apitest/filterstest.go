// Package filterstest has the part of the filter chain that the tests of other servers
// need before their handlers. Package filters has the whole chain.
package apitest

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/access/filters"
)

// WithContext adds to the context of each request what upstream's handlers read from
// it: the request info, the user who, a recorder of warnings, the time of receipt and
// an audit context. The handler may replace the user.
func WithContext(handler http.Handler, who user.Info) http.Handler {
	handler = withUser(handler, who)
	handler = endpointfilters.WithRequestInfo(handler, filters.NewRequestInfoResolver())
	handler = endpointfilters.WithWarningRecorder(handler)
	handler = endpointfilters.WithRequestReceivedTimestamp(handler)
	return endpointfilters.WithAuditInit(handler)
}

func withUser(handler http.Handler, who user.Info) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handler.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), who)))
	})
}
