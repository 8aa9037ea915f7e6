package auth

import (
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
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

func newTokens(o AuthenticationOptions, externalAddress string) (*Tokens, error) {
	signer, err := keyutil.PrivateKeyFromFile(o.ServiceAccounts.SigningKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(o.ServiceAccounts.Issuers[0], signer)
	if err != nil {
		return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	var public []any
	for _, file := range o.ServiceAccounts.KeyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("--service-account-key-file: %w", err)
		}
		public = append(public, keys...)
	}
	keys, err := serviceaccount.StaticPublicKeysGetter(public)
	if err != nil {
		return nil, fmt.Errorf("--service-account-key-file: %w", err)
	}
	t := &Tokens{
		Generator:             generator,
		Audiences:             o.APIAudiences,
		MaxExpiration:         o.ServiceAccounts.MaxExpiration,
		ExtendExpiration:      o.ServiceAccounts.ExtendExpiration,
		MaxExtendedExpiration: maxExtendedExpiration,
		keys:                  keys,
	}
	if len(t.Audiences) == 0 {
		t.Audiences = o.ServiceAccounts.Issuers
	}
	// An issuer that is no https URL is allowed; it only can't be discovered.
	t.metadata, t.metadataErr = serviceaccount.NewOpenIDMetadataProvider(
		o.ServiceAccounts.Issuers[0], o.ServiceAccounts.JWKSURI, externalAddress, keys)
	return t, nil
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
