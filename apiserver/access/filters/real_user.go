package filters

import (
	"context"
	"maps"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage"
)

type impersonatedKey struct{}

// withForwardedUser puts the real user of a request that a server has forwarded (storage.RealUserExtra) into the
// place of the one that the request impersonates, for the audit event; withRealUser puts that one back. An
// impersonation can't set that extra here: its headers are read after this.
func withForwardedUser(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if who, ok := request.UserFrom(req.Context()); ok && len(who.GetExtra()[storage.RealUserExtra]) > 0 {
			extra := maps.Clone(who.GetExtra())
			delete(extra, storage.RealUserExtra)
			impersonated := &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: extra}
			ctx := context.WithValue(req.Context(), impersonatedKey{}, impersonated)
			req = req.WithContext(request.WithUser(ctx, &user.DefaultInfo{Name: who.GetExtra()[storage.RealUserExtra][0]}))
		}
		handler.ServeHTTP(w, req)
	})
}

// withRealUser keeps the authenticated user of a request that impersonates another one for the store, which records
// both. The next filter puts the impersonated user into its place; of a forwarded request this one does.
func withRealUser(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		who, ok := request.UserFrom(ctx)
		if !ok {
			handler.ServeHTTP(w, req)
			return
		}
		if impersonated, ok := ctx.Value(impersonatedKey{}).(*user.DefaultInfo); ok {
			audit.LogImpersonatedUser(ctx, impersonated, "")
			req = req.WithContext(storage.WithRealUser(request.WithUser(ctx, impersonated), who.GetName()))
		} else if req.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			req = req.WithContext(storage.WithRealUser(req.Context(), who.GetName()))
		}
		handler.ServeHTTP(w, req)
	})
}
