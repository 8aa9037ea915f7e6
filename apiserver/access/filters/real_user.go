package filters

import (
	"maps"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage"
)

// withRealUser keeps the authenticated user of a request that impersonates another one for the
// store, which records both. The next filter puts the impersonated user into its place. Of a request that a
// server has forwarded it takes the real user from storage.RealUserExtra, which an impersonation can't set
// here: its headers are read after this.
func withRealUser(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		who, ok := request.UserFrom(req.Context())
		if !ok {
			handler.ServeHTTP(w, req)
			return
		}
		if names := who.GetExtra()[storage.RealUserExtra]; len(names) > 0 {
			extra := maps.Clone(who.GetExtra())
			delete(extra, storage.RealUserExtra)
			who := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: extra}
			req = req.WithContext(storage.WithRealUser(request.WithUser(req.Context(), who), names[0]))
		} else if req.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			req = req.WithContext(storage.WithRealUser(req.Context(), who.GetName()))
		}
		handler.ServeHTTP(w, req)
	})
}
