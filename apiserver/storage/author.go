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

// Writer is what a context's user and RequestInfo don't say of the request for a change. It
// travels in the context, because upstream's storage.Interface has no parameter for it.
type Writer struct {
	// Verb replaces that of RequestInfo, if it is not empty: an apply has the verb patch.
	Verb string
	// Manager is the field manager.
	Manager string
}

type (
	writerKey   struct{}
	realUserKey struct{}
)

// WithWriter returns a context whose changes are recorded with w.
func WithWriter(ctx context.Context, w Writer) context.Context {
	return context.WithValue(ctx, writerKey{}, w)
}

// WithRealUser returns a context that names the authenticated user of a request that
// impersonates another.
func WithRealUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, realUserKey{}, name)
}

// author returns the author of a change. A change that no request asked for has the verb op.
func author(ctx context.Context, op sqlstore.Op) sqlstore.Author {
	a := sqlstore.Author{User: programName, Verb: string(op), AuditID: audit.GetAuditIDTruncated(ctx)}
	if who, ok := request.UserFrom(ctx); ok && who.GetName() != "" {
		a.User = who.GetName()
	}
	a.RealUser, _ = ctx.Value(realUserKey{}).(string)
	if info, ok := request.RequestInfoFrom(ctx); ok && info != nil {
		a.Verb, a.Subresource = info.Verb, info.Subresource
	}
	if w, ok := ctx.Value(writerKey{}).(Writer); ok {
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
