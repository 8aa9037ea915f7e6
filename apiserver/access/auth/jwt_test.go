package auth

import (
	"crypto/ecdsa"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"

	"byre/sqlstore/storetest"
)

// issuer is an OpenID Connect issuer on this machine.
type issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{key: newKey(t)}
	mux := http.NewServeMux()
	answer := func(path string, value func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value())
		})
	}
	answer("/.well-known/openid-configuration", func() any {
		return map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}}
	})
	answer("/keys", func() any {
		return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}}
	})
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
}

func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{"iss": i.URL, "aud": "client", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	payload, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestAuthenticator_OIDCFlags(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	server := serve(t, newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny",
		"--oidc-issuer-url="+i.URL, "--oidc-client-id=client", "--oidc-ca-file="+write(t, "issuer.crt", i.ca()),
		"--oidc-signing-algs=ES256", "--oidc-username-claim=name", "--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:",
		"--oidc-required-claim=team=blue")))
	good := map[string]any{"name": "erin", "groups": []string{"dev"}, "team": "blue"}
	token := i.token(t, good)
	storetest.Eventually(t, "the issuer's keys", func() bool { return ask(t, server, nil, bearer(token)...).Name != "" })
	check(t, ask(t, server, nil, bearer(token)...), i.URL+"#erin", "oidc:dev")
	refused(t, ask(t, server, nil, bearer(i.token(t, map[string]any{"name": "erin", "team": "red"}))...))
	refused(t, ask(t, server, nil, bearer(i.token(t, map[string]any{"name": "erin", "team": "blue", "aud": "other"}))...))
	other := &issuer{Server: i.Server, key: newKey(t)}
	refused(t, ask(t, server, nil, bearer(other.token(t, good))...))
}

// configuration accepts users of an issuer whose claim "team" has the given value.
func configuration(i *issuer, team string) []byte {
	ca, _ := json.Marshal(string(i.ca()))
	return fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}]
jwt:
- issuer: {url: %q, audiences: [client], certificateAuthority: %s}
  claimMappings:
    username: {expression: '"jwt:" + claims.sub'}
  claimValidationRules:
  - {expression: 'claims.team == "%s"', message: wrong team}
`, i.URL, ca, team)
}

// TestAuthenticationConfig_Reloads takes ten seconds: upstream's builder waits that long
// before it asks again whether new issuers have answered.
func TestAuthenticationConfig_Reloads(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Parallel()
	i := newIssuer(t)
	file := write(t, "authn.yaml", configuration(i, "blue"))
	a := newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny", "--authentication-config="+file))
	server := serve(t, a)
	blue, red := i.token(t, map[string]any{"sub": "f", "team": "blue"}), i.token(t, map[string]any{"sub": "f", "team": "red"})
	storetest.Eventually(t, "the issuer's keys", func() bool { return ask(t, server, nil, bearer(blue)...).Name != "" })
	check(t, ask(t, server, nil, bearer(blue)...), "jwt:f")
	refused(t, ask(t, server, nil, bearer(red)...))
	// The new file allows anonymous access by path, and "/" is not one of the paths.
	if got := ask(t, server, nil); got.Name == user.Anonymous {
		t.Errorf("got %+v", got)
	}
	if err := os.WriteFile(file, configuration(i, "red"), 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the new configuration", func() bool { return ask(t, server, nil, bearer(red)...).Name != "" })
}

func TestAuthenticationConfig_ExcludesFlags(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	file := write(t, "authn.yaml", configuration(i, "blue"))
	o := options(t, "--authorization-mode=AlwaysDeny", "--authentication-config="+file, "--anonymous-auth=true")
	if _, err := New(t.Context(), Config{Options: o, Client: fake.NewClientset()}); err == nil || !strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("--anonymous-auth beside the file's anonymous section: %v", err)
	}
}
