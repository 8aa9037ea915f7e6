package storage

import (
	"context"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/sqlstore"
)

// programName is the author of changes that no request asked for.
const programName = "byre"

// RealUserExtra is the key, in the extra of a user, by which a server that only reads names the real user to
// the server that it forwards a request to: the impersonation is over by then.
const RealUserExtra = "byre.dev/real-user"

type realUserKey struct{}

// WithRealUser returns a context that names the authenticated user of a request that
// impersonates another.
func WithRealUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, realUserKey{}, name)
}

// RealUser returns the name of WithRealUser; empty if the request impersonates nobody.
func RealUser(ctx context.Context) string {
	name, _ := ctx.Value(realUserKey{}).(string)
	return name
}

// author returns the author of a change. A change that no request asked for has the verb op.
func author(ctx context.Context, op sqlstore.Op) sqlstore.Author {
	a := sqlstore.Author{User: programName, Verb: string(op), AuditID: audit.GetAuditIDTruncated(ctx)}
	if who, ok := request.UserFrom(ctx); ok && who.GetName() != "" {
		a.User = who.GetName()
	}
	a.RealUser = RealUser(ctx)
	if info, ok := request.RequestInfoFrom(ctx); ok && info != nil {
		a.Verb, a.Subresource = info.Verb, info.Subresource
	}
	if w, ok := ctx.Value(writeKey{}).(*Write); ok {
		a.Manager = w.Manager
		if w.Verb != "" {
			a.Verb = w.Verb
		}
	}
	return a
}

// isOwn reports whether a change is the server's own: no request asked for it, or one of the server
// itself. One that impersonates the server is another user's.
func isOwn(ctx context.Context) bool {
	if _, impersonates := ctx.Value(realUserKey{}).(string); impersonates {
		return false
	}
	who, ok := request.UserFrom(ctx)
	return !ok || who.GetName() == user.APIServerUser
}
