package auth

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/auth/rbac"
)

// Config is what New works with. All but Client's answers must be there before
// the first request; Client is not called before Run.
type Config struct {
	Options *Options
	// ServerID names this process in metrics of reloads.
	ServerID string
	// Client reaches this very server as its own privileged user. Nothing
	// that it authenticates with may in turn need Client.
	Client kubernetes.Interface
	// Informers are over Client. New registers those it needs; the caller
	// starts the factory.
	Informers informers.SharedInformerFactory
	// RBAC are the rules that mode RBAC decides by.
	RBAC *rbac.Tables
	// ExternalAddress is the host and port at which clients find this server;
	// the discovery document of service account tokens points there.
	ExternalAddress string
	// Egress says how to connect to issuers and webhooks; nil means directly.
	Egress *egressselector.EgressSelector
}

// Auth is a server's authentication and authorization.
type Auth struct {
	// Authenticator is nil if no way to authenticate was configured and
	// anonymous access is off.
	Authenticator authenticator.Request
	APIAudiences  authenticator.Audiences
	// RequestHeader is nil without a front proxy.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver
	// UsesRBAC tells whether RBAC decides anything, and so whether its
	// bootstrap objects are wanted.
	UsesRBAC bool

	// ClientCA and RequestHeaderCA are nil when not configured. The listener
	// asks clients for certificates of either (see ClientCAs).
	ClientCA        dynamiccertificates.CAContentProvider
	RequestHeaderCA dynamiccertificates.CAContentProvider

	// Tokens issues service account tokens.
	Tokens *Tokens

	// SecurityDefinitions and SecuritySchemes describe the authenticators in
	// OpenAPI v2 and v3.
	SecurityDefinitions *spec.SecurityDefinitions
	SecuritySchemes     spec3.SecuritySchemes

	reload *reloader // nil without --authentication-config
	nodes  *nodes    // nil without the Node authorizer
}

// New builds authentication and authorization. ctx bounds the life of what
// upstream's builders start with construction (see the package comment); it
// should be the one that Run gets.
func New(ctx context.Context, cfg Config) (*Auth, error) {
	a := &Auth{}
	var err error
	if a.Tokens, err = newTokens(ctx, cfg.Options.Authentication, cfg.ExternalAddress); err != nil {
		return nil, err
	}
	if err := a.buildAuthenticator(ctx, cfg); err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	if err := a.buildAuthorizer(ctx, cfg); err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	return a, nil
}

// ClientCAs is the union of the CAs whose certificates clients may present; nil
// if there are none.
func (a *Auth) ClientCAs() dynamiccertificates.CAContentProvider {
	switch {
	case a.ClientCA == nil:
		return a.RequestHeaderCA
	case a.RequestHeaderCA == nil:
		return a.ClientCA
	default:
		return dynamiccertificates.NewUnionCAContentProvider(a.ClientCA, a.RequestHeaderCA)
	}
}

// Run follows the files and objects that the answers depend on until ctx ends.
func (a *Auth) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, ca := range []dynamiccertificates.CAContentProvider{a.ClientCA, a.RequestHeaderCA} {
		if follower, ok := ca.(dynamiccertificates.ControllerRunner); ok {
			group.Go(func() error {
				follower.Run(ctx, 1)
				return nil
			})
		}
	}
	// With nothing to follow, this is all there is to wait for.
	group.Go(func() error {
		<-ctx.Done()
		return nil
	})
	if a.reload != nil {
		group.Go(func() error { return a.reload.run(ctx) })
	}
	if a.nodes != nil {
		group.Go(func() error { return a.nodes.run(ctx) })
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
