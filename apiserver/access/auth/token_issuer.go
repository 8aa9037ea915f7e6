package auth

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin"
)

// TokenIssuer issues service account tokens. It holds what the subresource
// serviceaccounts/token needs, and serves the OpenID metadata with which others verify
// the tokens.
type TokenIssuer struct {
	Generator serviceaccount.TokenGenerator
	// Audiences are the audiences of a token if the request names none.
	Audiences authenticator.Audiences
	// MaxExpiration is the longest lifetime of a requested token; 0 means no limit.
	MaxExpiration time.Duration
	// ExtendExpiration gives tokens that admission injects into Pods a lifetime of
	// MaxExtendedExpiration.
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration

	keys     serviceaccount.PublicKeysGetter
	metadata serviceaccount.OpenIDMetadataProvider
	// metadataErr says why metadata is nil; nil if it is not.
	metadataErr error
}

// newTokenIssuer builds the issuer. The connection to an external signer ends with ctx.
func newTokenIssuer(ctx context.Context, o AuthenticationOptions, externalAddress string) (*TokenIssuer, error) {
	t := &TokenIssuer{
		Audiences:             o.APIAudiences,
		MaxExpiration:         o.ServiceAccounts.MaxExpiration,
		ExtendExpiration:      o.ServiceAccounts.ExtendExpiration,
		MaxExtendedExpiration: o.ServiceAccounts.MaxExtendedExpiration,
	}
	if len(t.Audiences) == 0 {
		t.Audiences = o.ServiceAccounts.Issuers
	}
	setKeys := t.loadKeyFiles
	if o.SigningEndpoint != "" {
		setKeys = t.connectExternalSigner
	}
	if err := setKeys(ctx, o); err != nil {
		return nil, err
	}
	if warning := t.warning(); warning != "" {
		klog.Warning(warning)
	}
	// An issuer that is not an https URL is allowed, but has no OpenID metadata.
	t.metadata, t.metadataErr = serviceaccount.NewOpenIDMetadataProvider(
		o.ServiceAccounts.Issuers[0], o.ServiceAccounts.JWKSURI, externalAddress, t.keys)
	return t, nil
}

// warning says how MaxExpiration and ExtendExpiration contradict each other, of which kube-apiserver warns too. It is
// empty if they do not.
func (t *TokenIssuer) warning() string {
	switch {
	case !t.ExtendExpiration || t.MaxExpiration == 0:
	case t.MaxExpiration < serviceaccount.WarnOnlyBoundTokenExpirationSeconds*time.Second:
		return fmt.Sprintf(
			"--service-account-extend-token-expiration changes nothing: tokens live for %v at most, and it needs %d s",
			t.MaxExpiration, serviceaccount.WarnOnlyBoundTokenExpirationSeconds)
	case t.MaxExpiration < t.MaxExtendedExpiration:
		return fmt.Sprintf(
			"--service-account-extend-token-expiration has tokens that admission injects into Pods live for %v, longer than --service-account-max-token-expiration, %v",
			t.MaxExtendedExpiration, t.MaxExpiration)
	}
	return ""
}

// loadKeyFiles sets the generator and the public keys from the key files.
func (t *TokenIssuer) loadKeyFiles(_ context.Context, o AuthenticationOptions) error {
	signer, err := keyutil.PrivateKeyFromFile(o.SigningKeyFile)
	if err != nil {
		return fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	if t.Generator, err = serviceaccount.JWTTokenGenerator(o.ServiceAccounts.Issuers[0], signer); err != nil {
		return fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	var public []any
	for _, file := range o.ServiceAccounts.KeyFiles {
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

// Upstream's time limits (pkg/controlplane/apiserver/server) for reading the keys and
// the metadata of an external signer.
const (
	keySyncTimeout  = time.Minute
	metadataTimeout = 10 * time.Second
)

// connectExternalSigner connects to an external signer (KEP-740), which signs tokens and
// publishes the keys that verify them. It lowers MaxExpiration and
// MaxExtendedExpiration to the signer's longest lifetime.
func (t *TokenIssuer) connectExternalSigner(ctx context.Context, o AuthenticationOptions) error {
	signer, keys, err := plugin.New(ctx, o.ServiceAccounts.Issuers[0], o.SigningEndpoint, keySyncTimeout, false)
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
		return fmt.Errorf(
			"--service-account-signing-endpoint: the signer's tokens live for %d s at most, less than the %d s that a token must have",
			metadata.MaxTokenExpirationSeconds, validation.MinTokenAgeSec)
	}
	longest := time.Duration(metadata.MaxTokenExpirationSeconds) * time.Second
	if t.MaxExpiration > longest {
		return fmt.Errorf(
			"--service-account-max-token-expiration %v is longer than the signer of --service-account-signing-endpoint allows, %v", t.MaxExpiration, longest)
	}
	if t.MaxExpiration == 0 {
		t.MaxExpiration = longest
	}
	t.MaxExtendedExpiration = min(t.MaxExtendedExpiration, longest)
	t.Generator, t.keys = signer, keys
	return nil
}

// Paths of the OpenID metadata with which others verify service account tokens.
const (
	OpenIDConfigPath = serviceaccount.OpenIDConfigPath
	JWKSPath         = serviceaccount.JWKSPath
)

// OpenIDMetadataHandlers returns the handlers of OpenIDConfigPath and JWKSPath. It
// returns an error if the issuer has no metadata.
func (t *TokenIssuer) OpenIDMetadataHandlers() (map[string]http.Handler, error) {
	if t.metadataErr != nil {
		return nil, fmt.Errorf("service account issuer discovery is off: %w", t.metadataErr)
	}
	return map[string]http.Handler{
		OpenIDConfigPath: newMetadataHandler("application/json", t.metadata.GetConfigJSON),
		JWKSPath:         newMetadataHandler("application/jwk-set+json", t.metadata.GetKeysetJSON),
	}, nil
}

// newMetadataHandler serves the JSON that get returns. Clients may cache it for maxAge
// seconds: the handler replaces the Cache-Control header that the filter chain sets.
func newMetadataHandler(contentType string, get func() (json []byte, maxAge int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		json, maxAge := get()
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		_, _ = w.Write(json) // the client has gone if this fails
	})
}
