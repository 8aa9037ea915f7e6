package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/apitest"
	"byre/sqlstore/storetest"
)

func TestAuthenticator_ClientCertificates(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	file := write(t, "ca.crt", ca.pem())
	server := serve(t,
		newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny", "--client-ca-file="+file)))
	alice, mallory := ca.client(t, "alice", "dev", "ops"), other.client(t, "mallory")

	check(t, ask(t, server, alice), "alice", "dev", "ops")
	check(t, ask(t, server, alice), "alice", "dev", "ops") // now remembered
	check(t, ask(t, server, nil), user.Anonymous, user.AllUnauthenticated)
	refused(t, ask(t, server, mallory))

	// Another CA replaces the first: the cached result no longer applies.
	if err := os.WriteFile(file, other.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the new CA", func() bool { return ask(t, server, mallory).Name == "mallory" })
	refused(t, ask(t, server, alice))
}

// TestAuthenticator_AcceptsBothClientCAs: certificates of the server's own CA and of the
// flag's CA authenticate, and a change of either file takes effect.
func TestAuthenticator_AcceptsBothClientCAs(t *testing.T) {
	t.Parallel()
	own, flag, later := newAuthority(t, "own"), newAuthority(t, "flag"), newAuthority(t, "later")
	file := write(t, "flag.crt", flag.pem())
	o := options(t, "--authorization-mode=AlwaysDeny", "--client-ca-file="+file)
	o.Authentication.serverCAFile = write(t, "own.crt", own.pem())
	a := newAuth(t, fake.NewClientset(), nil, o)
	server := serve(t, a)
	check(t, ask(t, server, own.client(t, "root")), "root")
	check(t, ask(t, server, flag.client(t, "alice")), "alice")

	if err := os.WriteFile(file, later.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the new CA", func() bool { return ask(t, server, later.client(t, "bob")).Name == "bob" })
	check(t, ask(t, server, own.client(t, "root")), "root")
	refused(t, ask(t, server, flag.client(t, "alice")))
}

func TestAuthenticator_AnonymousOff(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	server := serve(t, newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny",
		"--anonymous-auth=false", "--client-ca-file="+write(t, "ca.crt", ca.pem()))))
	if got := ask(t, server, nil); got.Name != "" {
		t.Errorf("got %+v", got)
	}
}

func TestAuthenticator_TokenFile(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens.csv", []byte("secret,bob,42,\"g1,g2\"\n"))
	server := serve(t,
		newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny", "--token-auth-file="+file)))
	check(t, ask(t, server, nil, bearer("secret")...), "bob", "g1", "g2")
	refused(t, ask(t, server, nil, bearer("guess")...))
}

func TestAuthenticator_FrontProxy(t *testing.T) {
	t.Parallel()
	users, proxies := newAuthority(t, "users"), newAuthority(t, "proxies")
	server := serve(t, newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny",
		"--client-ca-file="+write(t, "ca.crt", users.pem()),
		"--requestheader-client-ca-file="+write(t, "proxy.crt", proxies.pem()),
		"--requestheader-allowed-names=front", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group")))
	header := []string{"X-Remote-User", "carol", "X-Remote-Group", "g"}
	check(t, ask(t, server, proxies.client(t, "front"), header...), "carol", "g")
	refused(t, ask(t, server, proxies.client(t, "back"), header...))
	// A user's certificate does not allow its owner to send identity headers.
	check(t, ask(t, server, users.client(t, "alice"), header...), "alice")
	check(t, ask(t, server, nil, header...), user.Anonymous, user.AllUnauthenticated)
}

// TestAuthenticator_FrontProxyHeadersWinWithASharedCA: with one CA for users and front
// proxies, the identity headers take precedence over the name in the proxy's certificate,
// before and after the certificate is cached.
func TestAuthenticator_FrontProxyHeadersWinWithASharedCA(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	file := write(t, "ca.crt", ca.pem())
	server := serve(t, newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny",
		"--client-ca-file="+file, "--requestheader-client-ca-file="+file,
		"--requestheader-allowed-names=front", "--requestheader-username-headers=X-Remote-User")))
	front := ca.client(t, "front")
	check(t, ask(t, server, front), "front")
	check(t, ask(t, server, front, "X-Remote-User", "carol"), "carol")
	check(t, ask(t, server, front), "front")
}

func TestAuthenticator_ServiceAccountTokens(t *testing.T) {
	t.Parallel()
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "sa", UID: "sa-uid"}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "pod-uid"},
		Spec: v1.PodSpec{ServiceAccountName: "sa"}}
	stores := apitest.NewStores(t)
	stores.Create(t, v1.Resource("serviceaccounts"), account)
	stores.Create(t, v1.Resource("pods"), pod)
	a := newAuthReading(t, stores.Reader, fake.NewClientset(), nil,
		options(t, "--authorization-mode=AlwaysDeny", "--api-audiences=here", "--service-account-issuer=https://issuer"))
	server := serve(t, a)

	issue := func(account, bound types.UID, validity int64, audience string) string {
		t.Helper()
		var to *core.Pod
		if bound != "" {
			to = &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: bound}}
		}
		claims, private, err := serviceaccount.Claims(
			core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "sa", UID: account}},
			to, nil, nil, nil, nil, validity, 0, []string{audience}, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := a.TokenIssuer.Generator.GenerateToken(context.Background(), claims, private)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	const name = "system:serviceaccount:n:sa"
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:n"}
	check(t, ask(t, server, nil, bearer(issue("sa-uid", "", 600, "here"))...), name, groups...)
	check(t, ask(t, server, nil, bearer(issue("sa-uid", "pod-uid", 600, "here"))...), name, groups...)
	for what, token := range map[string]string{
		"an earlier account of that name": issue("other", "", 600, "here"),
		"an earlier pod of that name":     issue("sa-uid", "other", 600, "here"),
		"another audience":                issue("sa-uid", "", 600, "there"),
		"expired":                         issue("sa-uid", "", -3600, "here"),
		"tampered with":                   issue("sa-uid", "", 600, "here") + "x",
	} {
		t.Run(what, func(t *testing.T) { refused(t, ask(t, server, nil, bearer(token)...)) })
	}
	unused := issue("sa-uid", "pod-uid", 601, "here")
	stores.Delete(t, v1.Resource("pods"), pod)
	refused(t, ask(t, server, nil, bearer(unused)...))
}

// A bound on the lifetime of tokens that does not hold, or that undoes another flag, is logged.
func TestServiceAccountIssuer_WarnsOfExtendedTokens(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"": "",
		"--service-account-max-token-expiration=1h":                                                  "changes nothing: tokens live for 1h0m0s at most",
		"--service-account-max-token-expiration=24h":                                                 "live for 8760h0m0s, longer than --service-account-max-token-expiration, 24h0m0s",
		"--service-account-max-token-expiration=8760h":                                               "",
		"--service-account-max-token-expiration=24h --service-account-extend-token-expiration=false": "",
	} {
		a := newAuth(t, fake.NewClientset(), nil, options(t, strings.Fields("--authorization-mode=AlwaysDeny "+flags)...))
		if got := a.TokenIssuer.warning(); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", flags, got, want)
		}
	}
}

func TestServiceAccountIssuer_ServesDiscoveryDocuments(t *testing.T) {
	t.Parallel()
	a := newAuth(t, fake.NewClientset(), nil,
		options(t, "--authorization-mode=AlwaysDeny", "--service-account-issuer=https://issuer"))
	documents, err := a.TokenIssuer.OpenIDMetadataHandlers()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct{ contentType, key, value string }{
		"/.well-known/openid-configuration": {"application/json", "jwks_uri", `"https://127.0.0.1:6443/openid/v1/jwks"`},
		"/openid/v1/jwks":                   {"application/jwk-set+json", "keys", ""},
	} {
		w := httptest.NewRecorder()
		documents[path].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var got map[string]json.RawMessage
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		value := string(got[want.key])
		if w.Header().Get("Content-Type") != want.contentType || want.value != "" && value != want.value || value == "" {
			t.Errorf("%s: got %v %s", path, w.Header(), w.Body)
		}
	}

	a = newAuth(t, fake.NewClientset(), nil,
		options(t, "--authorization-mode=AlwaysDeny", "--service-account-issuer=plain"))
	if _, err := a.TokenIssuer.OpenIDMetadataHandlers(); err == nil {
		t.Error("an issuer that is no URL has discovery documents")
	}
}

func TestAuthenticator_BootstrapToken(t *testing.T) {
	t.Parallel()
	secret := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
		Type:       "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-authentication": []byte("true"),
		},
	}
	stores := apitest.NewStores(t)
	stores.Create(t, v1.Resource("secrets"), secret)
	server := serve(t,
		newAuthReading(t, stores.Reader, fake.NewClientset(), nil,
			options(t, "--authorization-mode=AlwaysDeny", "--enable-bootstrap-token-auth")))
	check(t, ask(t, server, nil, bearer("abcdef.0123456789abcdef")...), "system:bootstrap:abcdef", "system:bootstrappers")
	refused(t, ask(t, server, nil, bearer("abcdef.fedcba9876543210")...))
	refused(t, ask(t, server, nil, bearer("uvwxyz.0123456789abcdef")...))

	off := serve(t,
		newAuthReading(t, stores.Reader, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny")))
	refused(t, ask(t, off, nil, bearer("abcdef.0123456789abcdef")...))
}

func TestAuthenticator_TokenWebhook(t *testing.T) {
	t.Parallel()
	webhook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if review.Spec.Token == "remote" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
				User: authenticationv1.UserInfo{Username: "dave", Groups: []string{"g"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer webhook.Close()
	config := write(t, "webhook.kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, webhook.URL))
	server := serve(t, newAuth(t, fake.NewClientset(), nil, options(t, "--authorization-mode=AlwaysDeny",
		"--authentication-token-webhook-config-file="+config, "--authentication-token-webhook-version=v1")))
	check(t, ask(t, server, nil, bearer("remote")...), "dave", "g")
	refused(t, ask(t, server, nil, bearer("unknown")...))
}

// TestAuthenticator_ForgetsAnExpiredCertificate: a cached verification does not outlive its
// certificate.
func TestAuthenticator_ForgetsAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	a := newAuth(t, fake.NewClientset(), nil,
		options(t, "--authorization-mode=AlwaysDeny", "--client-ca-file="+write(t, "ca.crt", ca.pem())))
	c := newCachedX509Authenticator(a.ClientCA.VerifyOptions, nil)
	now := &steps{now: time.Now()}
	c.clock = now
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{}
	r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, ca.client(t, "alice").Leaf)

	first, ok, _ := c.AuthenticateRequest(r)
	if !ok {
		t.Fatal("not verified")
	}
	if again, _, _ := c.AuthenticateRequest(r); again != first {
		t.Error("verified again")
	}
	now.now = now.now.Add(2 * time.Hour)
	if _, ok, _ := c.AuthenticateRequest(r); ok {
		t.Error("an expired certificate is still remembered")
	}
}

// steps is a clock that the test advances.
type steps struct{ now time.Time }

func (s *steps) Now() time.Time                  { return s.now }
func (s *steps) Since(t time.Time) time.Duration { return s.now.Sub(t) }

// verifiedBy returns the options to verify client certificates of a CA.
func verifiedBy(ca authority) x509request.VerifyOptionFunc {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return func() (x509.VerifyOptions, bool) {
		options := x509request.DefaultVerifyOptions()
		options.Roots = roots
		return options, true
	}
}

// TestCertificateCache_ServesEachConnectionOfAClient: a client that connects again is served
// from the entry of its first connection. crypto/tls parses the certificates of each
// connection anew, so the cache must not compare their addresses.
func TestCertificateCache_ServesEachConnectionOfAClient(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	c := newCachedX509Authenticator(verifiedBy(ca), nil)
	server := serve(t, &Auth{Authenticator: c})
	alice, bob := ca.client(t, "alice", "dev"), ca.client(t, "bob")
	for range 3 {
		check(t, ask(t, server, alice), "alice", "dev")
		check(t, ask(t, server, bob), "bob")
	}
	if n := c.cache.Len(); n != 2 {
		t.Errorf("%d entries of two clients", n)
	}
}

// TestCertificateCache_AnswersAsUpstream: the first request of a client and a later one, which
// is answered from the cache, get the user that upstream's authenticators find.
func TestCertificateCache_AnswersAsUpstream(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	verify := verifiedBy(ca)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.client(t, "alice", "dev").Leaf}}
	upstream := group.NewAuthenticatedGroupAdder(x509request.NewDynamic(verify, x509request.CommonNameUserConversion))
	want, ok, err := upstream.AuthenticateRequest(r)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	c := newCachedX509Authenticator(verify, nil)
	for range 2 {
		got, ok, err := c.AuthenticateRequest(r)
		if err != nil || !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, %v; upstream finds %+v", got, ok, err, want)
		}
	}
}

// TestCertificateCache_ObservesTheExpiryForEachRequest: each request adds one observation to
// upstream's histogram, which alerts on expiring certificates read: those that are answered from
// the cache, and those whose verification fails, which upstream's authenticator repeats.
func TestCertificateCache_ObservesTheExpiryForEachRequest(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	verify := verifiedBy(ca)
	both := union.New(newCachedX509Authenticator(verify, nil),
		x509request.NewDynamic(verify, x509request.CommonNameUserConversion))
	for _, test := range []struct {
		of   authority
		isOK bool
	}{{ca, true}, {other, false}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{test.of.client(t, "alice").Leaf}}
		before := expiryObservations(t)
		for range 51 {
			if _, ok, _ := both.AuthenticateRequest(r); ok != test.isOK {
				t.Fatalf("a certificate of %s: authenticated is %v", test.of.cert.Subject, ok)
			}
		}
		if n := expiryObservations(t) - before; n != 51 {
			t.Errorf("51 requests with a certificate of %s are %d observations", test.of.cert.Subject, n)
		}
	}
}

func expiryObservations(t *testing.T) uint64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "apiserver_client_certificate_expiration_seconds" {
			return family.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatal("there is no histogram")
	return 0
}

// BenchmarkCertificates authenticates requests of one connection with the cache, and with
// upstream's authenticator, which verifies the certificate each time.
func BenchmarkCertificates(b *testing.B) {
	ca := newAuthority(b, "ca")
	verify := verifiedBy(ca)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.client(b, "alice").Leaf}}
	for name, requests := range map[string]authenticator.Request{
		"cached":   newCachedX509Authenticator(verify, nil),
		"upstream": x509request.NewDynamic(verify, x509request.CommonNameUserConversion),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, err := requests.AuthenticateRequest(r); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

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
		return map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}}
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
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}},
		nil)
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
	a := newAuth(t, fake.NewClientset(), nil,
		options(t, "--authorization-mode=AlwaysDeny", "--authentication-config="+file))
	server := serve(t, a)
	blue, red := i.token(t, map[string]any{"sub": "f", "team": "blue"}),
		i.token(t, map[string]any{"sub": "f", "team": "red"})
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
	if _, err := New(t.Context(), Config{Options: o, Client: fake.NewClientset()}); err == nil ||
		!strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("--anonymous-auth beside the file's anonymous section: %v", err)
	}
}
