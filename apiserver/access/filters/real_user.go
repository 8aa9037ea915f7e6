package filters

import (
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage"
)

// withRealUser keeps the authenticated user of a request that impersonates another one for the
// store, which records both. The next filter puts the impersonated user into its place.
func withRealUser(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			if who, ok := request.UserFrom(req.Context()); ok {
				req = req.WithContext(storage.WithRealUser(req.Context(), who.GetName()))
			}
		}
		handler.ServeHTTP(w, req)
	})
}
