package auth

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin"
)

// Tokens is the issuing side of service account tokens: what the subresource
// serviceaccounts/token needs, and the documents by which others verify.
type Tokens struct {
	Generator serviceaccount.TokenGenerator
	// Audiences are what a token is for when the request names none.
	Audiences authenticator.Audiences
	// MaxExpiration is the longest validity that a request gets; 0: no limit.
	MaxExpiration time.Duration
	// ExtendExpiration gives tokens injected by admission a validity of
	// MaxExtendedExpiration.
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration

	keys     serviceaccount.PublicKeysGetter
	metadata serviceaccount.OpenIDMetadataProvider
	// metadataErr is why there are no discovery documents.
	metadataErr error
}

// newTokens makes the issuing side. ctx bounds the life of the connection to an
// external signer.
func newTokens(ctx context.Context, o AuthenticationOptions, externalAddress string) (*Tokens, error) {
	t := &Tokens{
		Audiences:             o.APIAudiences,
		MaxExpiration:         o.ServiceAccounts.MaxExpiration,
		ExtendExpiration:      o.ServiceAccounts.ExtendExpiration,
		MaxExtendedExpiration: maxExtendedExpiration,
	}
	if len(t.Audiences) == 0 {
		t.Audiences = o.ServiceAccounts.Issuers
	}
	sign := t.signByFile
	if o.ServiceAccounts.SigningEndpoint != "" {
		sign = t.signByEndpoint
	}
	if err := sign(ctx, &o.ServiceAccounts); err != nil {
		return nil, err
	}
	// An issuer that is no https URL is allowed; it only can't be discovered.
	t.metadata, t.metadataErr = serviceaccount.NewOpenIDMetadataProvider(
		o.ServiceAccounts.Issuers[0], o.ServiceAccounts.JWKSURI, externalAddress, t.keys)
	return t, nil
}

// signByFile takes the keys from files.
func (t *Tokens) signByFile(_ context.Context, o *ServiceAccountOptions) error {
	signer, err := keyutil.PrivateKeyFromFile(o.SigningKeyFile)
	if err != nil {
		return fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	if t.Generator, err = serviceaccount.JWTTokenGenerator(o.Issuers[0], signer); err != nil {
		return fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	var public []any
	for _, file := range o.KeyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file: %w", err)
		}
		public = append(public, keys...)
	}
	if t.keys, err = serviceaccount.StaticPublicKeysGetter(public); err != nil {
		return fmt.Errorf("--service-account-key-file: %w", err)
	}
	return nil
}

// Upstream's bounds (pkg/controlplane/apiserver/options) of what an external signer
// may take for its keys and for its metadata.
const (
	keySyncTimeout  = time.Minute
	metadataTimeout = 10 * time.Second
)

// signByEndpoint has a signer of its own process sign tokens and say by which keys
// they verify. No token lives longer than the signer allows.
func (t *Tokens) signByEndpoint(ctx context.Context, o *ServiceAccountOptions) error {
	signer, keys, err := plugin.New(ctx, o.Issuers[0], o.SigningEndpoint, keySyncTimeout, false)
	if err != nil {
		return fmt.Errorf("--service-account-signing-endpoint: %w", err)
	}
	timed, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	metadata, err := signer.GetServiceMetadata(timed)
	if err != nil {
		return fmt.Errorf("--service-account-signing-endpoint: %w", err)
	}
	if metadata.MaxTokenExpirationSeconds < validation.MinTokenAgeSec {
		return fmt.Errorf("--service-account-signing-endpoint: the signer's tokens live for %d s at most, less than the %d s that a token must have",
			metadata.MaxTokenExpirationSeconds, validation.MinTokenAgeSec)
	}
	longest := time.Duration(metadata.MaxTokenExpirationSeconds) * time.Second
	if t.MaxExpiration > longest {
		return fmt.Errorf("--service-account-max-token-expiration %v is longer than the signer of --service-account-signing-endpoint allows, %v", t.MaxExpiration, longest)
	}
	if t.MaxExpiration == 0 {
		t.MaxExpiration = longest
	}
	t.MaxExtendedExpiration = min(t.MaxExtendedExpiration, longest)
	t.Generator, t.keys = signer, keys
	return nil
}

// Paths of the documents by which others verify service account tokens.
const (
	OpenIDConfigPath = serviceaccount.OpenIDConfigPath
	JWKSPath         = serviceaccount.JWKSPath
)

// DiscoveryHandlers returns the handlers of OpenIDConfigPath and JWKSPath, or
// why there are none.
func (t *Tokens) DiscoveryHandlers() (map[string]http.Handler, error) {
	if t.metadataErr != nil {
		return nil, fmt.Errorf("service account issuer discovery is off: %w", t.metadataErr)
	}
	return map[string]http.Handler{
		OpenIDConfigPath: document("application/json", t.metadata.GetConfigJSON),
		JWKSPath:         document("application/jwk-set+json", t.metadata.GetKeysetJSON),
	}, nil
}

// document serves JSON that is public and may be cached for maxAge seconds,
// which overrides the chain's own "no-cache".
func document(contentType string, get func() (json []byte, maxAge int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		json, maxAge := get()
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		_, _ = w.Write(json) // the client has gone if this fails
	})
}
