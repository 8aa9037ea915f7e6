package peers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
)

// Issuer is an OpenID Connect issuer.
type Issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

// NewIssuer starts an issuer with a certificate of the authority.
func NewIssuer(a *Authority) (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	i := &Issuer{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer":                                i.URL,
			"jwks_uri":                              i.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{string(jose.ES256)},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		public := jose.JSONWebKey{Key: key.Public(), KeyID: "k", Algorithm: string(jose.ES256), Use: "sig"}
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}})
	})
	i.Server = a.serve(mux)
	return i, nil
}

// Token returns a token with these claims, with the issuer, and with an expiry in one hour.
func (i *Issuer) Token(claims map[string]any) (string, error) {
	all := map[string]any{"iss": i.URL, "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	payload, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	key := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}}
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// answer writes JSON. That fails only if the client has gone.
func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
