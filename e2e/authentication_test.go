package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd/api"

	"byre/e2e/peers"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// bootstrapToken is that of the Secret that makeBootstrapToken makes.
const bootstrapToken = "abcdef.0123456789abcdef"

// testWhoami runs "kubectl auth whoami" with the credentials of each authenticator.
func testWhoami(t *testing.T, site *site, s *servers.Server) {
	makeBootstrapToken(t, s)
	cert, key := clientCertificate(t, site.users, "carol", "dev", "ops")
	proxied := &api.AuthInfo{}
	for _, test := range []struct {
		name, server string
		user         *api.AuthInfo
		want         authenticationv1.UserInfo
	}{
		{"client certificate", s.URL, &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key},
			authenticationv1.UserInfo{Username: "carol", Groups: []string{"dev", "ops"}}},
		{"token file", s.URL, &api.AuthInfo{Token: servers.AliceToken},
			authenticationv1.UserInfo{Username: "alice", UID: "alice-uid", Groups: []string{"staff", "contractors"}}},
		{"bootstrap token", s.URL, &api.AuthInfo{Token: bootstrapToken},
			authenticationv1.UserInfo{Username: "system:bootstrap:abcdef",
				Groups: []string{"system:bootstrappers", "system:bootstrappers:workers"}}},
		{"OpenID Connect", s.URL, &api.AuthInfo{Token: site.token(t, nil)},
			authenticationv1.UserInfo{Username: "oidc:dora", UID: "dora", Groups: []string{"oidc:dev"},
				Extra: map[string]authenticationv1.ExtraValue{"example.com/tenant": {"acme"}}}},
		{"token webhook", s.URL, &api.AuthInfo{Token: peers.HookedToken},
			authenticationv1.UserInfo{Username: "wanda", UID: "wanda-uid", Groups: []string{"hooked"},
				Extra: map[string]authenticationv1.ExtraValue{"example.com/desk": {"7"}}}},
		{"front proxy", frontProxy(t, site, s), proxied,
			authenticationv1.UserInfo{Username: "peter", Groups: []string{"proxied"},
				Extra: map[string]authenticationv1.ExtraValue{"desk": {"9"}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := whoami(t, kubeconfig(t, test.server, s.CAFile, test.user))
			test.want.Groups = append(test.want.Groups, "system:authenticated")
			delete(got.Extra, "authentication.kubernetes.io/credential-id") // a hash of the certificate
			if got.String() != test.want.String() {
				t.Errorf("kubectl auth whoami says\n%s, want\n%s", got.String(), test.want.String())
			}
		})
	}
}

// testStrangers sends credentials that are not valid.
func testStrangers(t *testing.T, site *site, s *servers.Server) {
	strange := newAuthority(t, "users")
	cert, key := clientCertificate(t, strange, "carol", "system:masters")
	users, usersKey := clientCertificate(t, site.users, "front-proxy")
	for name, user := range map[string]*api.AuthInfo{
		"a certificate of another authority": {ClientCertificateData: cert, ClientKeyData: key},
		"an unknown token":                   {Token: "unknown"},
		"a wrong bootstrap token":            {Token: "abcdef.fedcba9876543210"},
		"a token for others":                 {Token: site.token(t, map[string]any{"aud": "others"})},
		"a token that has ended": {Token: site.token(t,
			map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})},
		"a token that a claim rule refuses": {Token: site.token(t, map[string]any{"hd": "example.org"})},
		"a token that a user rule refuses":  {Token: site.token(t, map[string]any{"roles": []string{"system:masters"}})},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, err := kubectl(t, kubeconfig(t, s.URL, s.CAFile, user), "auth", "whoami")
			if err == nil || !strings.Contains(stderr, "Unauthorized") && !strings.Contains(stderr, "must be logged in") {
				t.Errorf("kubectl says: %s (%v)", stderr, err)
			}
		})
	}
	t.Run("headers without the proxy's certificate", func(t *testing.T) {
		// The certificate has the proxy's name, and is of another authority.
		proxy := proxyWith(t, s, users, usersKey, "peter")
		if got := whoami(t, kubeconfig(t, proxy, s.CAFile, &api.AuthInfo{})); got.Username != "front-proxy" {
			t.Errorf("the server accepts the proxy's headers of a client that is not the proxy: it is %q", got.Username)
		}
	})
}

// testAnonymous sends requests without credentials, to paths that allow that and to others.
func testAnonymous(t *testing.T, s *servers.Server) {
	for path, want := range map[string]int{
		"/livez": http.StatusOK, "/readyz": http.StatusOK, "/healthz": http.StatusOK,
		"/version": http.StatusUnauthorized, "/api": http.StatusUnauthorized, "/livez/ping": http.StatusUnauthorized,
		"/api/v1/namespaces": http.StatusUnauthorized, "/metrics": http.StatusUnauthorized, "/": http.StatusUnauthorized,
	} {
		if got, body := get(t, s, "", path); got != want {
			t.Errorf("%s answers %d, want %d: %s", path, got, want, body)
		}
	}
}

// testReloads changes the files of authentication.
func testReloads(t *testing.T, site *site, s *servers.Server) {
	other := newAuthority(t, "more users")
	cert, key := clientCertificate(t, other, "erin")
	fromOther := kubeconfig(t, s.URL, s.CAFile, &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
	dora := kubeconfig(t, s.URL, s.CAFile, &api.AuthInfo{Token: site.token(t, nil)})
	if got := whoami(t, dora); got.Username != "oidc:dora" {
		t.Fatalf("before the change, dora is %q", got.Username)
	}
	site.write(t, "users-ca.crt", string(other.PEM))
	site.edit(t, "authentication.yaml", `"oidc:" + claims.sub`, `"renamed:" + claims.sub`)

	storetest.EventuallySucceeds(t, "the new claim rules", func() error {
		if got, err := tryWhoami(t, dora); err != nil || got.Username != "renamed:dora" {
			return fmt.Errorf("dora is %q (%w)", got.Username, err)
		}
		return nil
	})
	storetest.EventuallySucceeds(t, "the new authority", func() error {
		if got, err := tryWhoami(t, fromOther); err != nil || got.Username != "erin" {
			return fmt.Errorf("erin is %q (%w)", got.Username, err)
		}
		return nil
	})
	cert, key = clientCertificate(t, site.users, "carol")
	if got, err := tryWhoami(t,
		kubeconfig(t, s.URL, s.CAFile, &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})); err == nil ||
		!strings.Contains(err.Error(), "must be logged in") {
		t.Errorf("a certificate of the authority that was taken out is %q (%v)", got.Username, err)
	}
}

// token is the issuer's for dora, with some claims changed.
func (s *site) token(t *testing.T, change map[string]any) string {
	t.Helper()
	claims := map[string]any{"aud": "byre", "sub": "dora", "hd": "example.com", "roles": []string{"dev"}, "tenant": "acme",
		"email": "dora@example.com"}
	maps.Copy(claims, change)
	token, err := s.issuer.Token(claims)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func makeBootstrapToken(t *testing.T, s *servers.Server) {
	t.Helper()
	id, secret, _ := strings.Cut(bootstrapToken, ".")
	_, err := client(t, s).CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       "bootstrap.kubernetes.io/token",
		StringData: map[string]string{"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:workers"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func clientCertificate(t *testing.T, a *peers.Authority, name string, organizations ...string) (cert, key []byte) {
	t.Helper()
	cert, key, err := a.Client(name, organizations...)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// frontProxy is an authenticating proxy before the server: each of its requests is peter's.
func frontProxy(t *testing.T, site *site, s *servers.Server) string {
	t.Helper()
	cert, key := clientCertificate(t, site.proxies, "front-proxy")
	return proxyWith(t, s, cert, key, "peter")
}

func proxyWith(t *testing.T, s *servers.Server, cert, key []byte, user string) string {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Set("X-Remote-User", user)
		r.Out.Header.Set("X-Remote-Group", "proxied")
		r.Out.Header.Set("X-Remote-Extra-Desk", "9")
	}})
	t.Cleanup(proxy.Close)
	return proxy.URL
}

func whoami(t *testing.T, kubeconfig string) authenticationv1.UserInfo {
	t.Helper()
	user, err := tryWhoami(t, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func tryWhoami(t *testing.T, kubeconfig string, args ...string) (authenticationv1.UserInfo, error) {
	t.Helper()
	stdout, stderr, err := kubectl(t, kubeconfig, append([]string{"auth", "whoami", "-o", "json"}, args...)...)
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("%w: %s", err, stderr)
	}
	var review authenticationv1.SelfSubjectReview
	err = json.Unmarshal([]byte(stdout), &review)
	return review.Status.UserInfo, err
}

func kubectl(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Kubectl.Path(),
		append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+t.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// get requests a path, with a bearer token unless that is empty.
func get(t *testing.T, s *servers.Server, token, path string) (status int, body string) {
	t.Helper()
	raw := clientFor(t, s.Config(token)).Discovery().RESTClient().Get().AbsPath(path).Do(t.Context())
	raw.StatusCode(&status)
	answer, err := raw.Raw()
	if err != nil && status == 0 {
		t.Fatal(err)
	}
	return status, string(answer)
}
