package auth

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/storage"
)

// Config holds the dependencies of New. New does not call Client; Run and requests do.
type Config struct {
	Options *Options
	// ServerID identifies this process in the metrics of configuration reloads.
	ServerID string
	// Client sends requests to this server over the loopback transport. Upstream's
	// components that need a clientset or an informer use it: the one that removes
	// Secrets of unused tokens, and the Node authorizer, which follows Pods.
	// Authenticating a request of Client must not call Client, or it would never end.
	Client kubernetes.Interface
	// Reader reads the objects that credentials name.
	Reader *storage.LookupReader
	// Informers are over Client. New registers those it needs; the caller
	// starts the factory.
	Informers informers.SharedInformerFactory
	// RBAC lists the roles and bindings for mode RBAC.
	RBAC *RBACListers
	// ExternalAddress is the host and port at which clients reach this server.
	// The OpenID discovery document of service account tokens names it.
	ExternalAddress string
	// Dial connects to webhooks, and the dialers of EgressSelector to issuers; nil means direct
	// connections.
	Dial           utilnet.DialFunc
	EgressSelector *egressselector.EgressSelector
}

// Auth is a server's authentication and authorization.
type Auth struct {
	// Authenticator is nil if no authenticator is configured and anonymous
	// access is off.
	Authenticator authenticator.Request
	APIAudiences  authenticator.Audiences
	// RequestHeader is nil without a front proxy.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver

	// ClientCA has the CAs of users; nil if none is configured. The listener accepts client
	// certificates of these and of RequestHeader (see ClientCAs).
	ClientCA dynamiccertificates.CAContentProvider

	// TokenIssuer issues service account tokens.
	TokenIssuer *TokenIssuer

	clientCAs []*dynamiccertificates.DynamicFileCAContent // the files of ClientCA
	nodePods  *graphInformer                              // nil without the Node authorizer
}

// New builds the authenticators and authorizers. The goroutines that upstream's
// constructors start end with ctx (see the package comment). The caller passes the same
// context to Run.
func New(ctx context.Context, cfg Config) (*Auth, error) {
	a := &Auth{}
	var err error
	if a.TokenIssuer, err = newTokenIssuer(ctx, cfg.Options.Authentication, cfg.ExternalAddress); err != nil {
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

// ClientCAs returns the CAs of the certificates that clients may present, those of users and of
// front proxies. It returns nil if neither is configured.
func (a *Auth) ClientCAs() dynamiccertificates.CAContentProvider {
	switch {
	case a.RequestHeader == nil:
		return a.ClientCA
	case a.ClientCA == nil:
		return a.RequestHeader.CAContentProvider
	default:
		return dynamiccertificates.NewUnionCAContentProvider(a.ClientCA, a.RequestHeader.CAContentProvider)
	}
}

// Ready returns nil when the authorizer has read what it decides by.
func (a *Auth) Ready() error {
	if a.nodePods == nil || a.nodePods.HasSynced() {
		return nil
	}
	return errors.New("the Node authorizer has not read the Pods yet")
}

// Run watches the CA files and the Node authorizer's Pods until ctx ends. It returns when all its goroutines have
// ended.
func (a *Auth) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	var cas []dynamiccertificates.ControllerRunner
	for _, ca := range a.clientCAs {
		cas = append(cas, ca)
	}
	if a.RequestHeader != nil {
		if ca, ok := a.RequestHeader.CAContentProvider.(dynamiccertificates.ControllerRunner); ok {
			cas = append(cas, ca)
		}
	}
	for _, ca := range cas {
		group.Go(func() error {
			ca.Run(ctx, 1)
			return nil
		})
	}
	// Without this goroutine, Run would return at once if there is nothing to watch.
	group.Go(func() error {
		<-ctx.Done()
		return nil
	})
	if a.nodePods != nil {
		group.Go(func() error {
			a.nodePods.RunWithContext(ctx)
			return nil
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
