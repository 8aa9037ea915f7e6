package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"

	"byre/apiserver/storage"
)

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	return authority{sign(t, template, template, key, key), key}
}

// client makes a client certificate.
func (a authority) client(t testing.TB, name string, groups ...string) *tls.Certificate {
	t.Helper()
	key := newKey(t)
	cert := sign(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, key, a.key)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// write puts data into a new file.
func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// options parses flags over a server's own files, as a program would.
func options(t testing.TB, flags ...string) *Options {
	t.Helper()
	key := newKey(t)
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.Authentication.AddFlags(fs)
	o.Authorization.AddFlags(fs)
	if err := fs.Parse(flags); err != nil {
		t.Fatal(err)
	}
	o.Complete(PKIFiles{
		ServiceAccountKey: write(t, "sa.key", private),
		ServiceAccountPub: write(t, "sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
	})
	if errs := o.Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return o
}

// newAuth builds an Auth from the options and runs it until the test ends. Lookups of the
// objects that credentials name find no resource.
func newAuth(t testing.TB, client kubernetes.Interface, tables *RBACListers, o *Options) *Auth {
	t.Helper()
	nothing := storage.NewLookupReader(func(schema.GroupResource) *storage.Store { return nil })
	return newAuthReading(t, nothing, client, tables, o)
}

// newAuthReading is newAuth with a reader of the objects that credentials name.
func newAuthReading(
	t testing.TB, reader *storage.LookupReader, client kubernetes.Interface, tables *RBACListers, o *Options,
) *Auth {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	a, err := New(t.Context(), Config{
		Options: o, ServerID: "test", Client: client, Reader: reader, Informers: factory, RBAC: tables,
		ExternalAddress: "127.0.0.1:6443",
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	factory.Start(t.Context().Done())
	go func() { ended <- a.Run(t.Context()) }()
	t.Cleanup(func() { // after t.Context has ended
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		factory.Shutdown()
	})
	return a
}

// identity is the user that the server saw. Code is 401 for a refused request, and 200 with
// an empty Name for a request without an identity.
type identity struct {
	Code   int
	Name   string
	Groups []string
}

// serve starts a TLS server that answers with the identity of the caller.
func serve(t testing.TB, a *Auth) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, ok, err := a.Authenticator.AuthenticateRequest(r)
		who := identity{Code: http.StatusOK}
		switch {
		case err != nil:
			t.Logf("refused: %v", err)
			who.Code = http.StatusUnauthorized
		case ok:
			who.Name, who.Groups = response.User.GetName(), response.User.GetGroups()
		}
		_ = json.NewEncoder(w).Encode(who)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// ask makes one request on a connection of its own.
func ask(t testing.TB, server *httptest.Server, cert *tls.Certificate, header ...string) identity {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var who identity
	if err := json.NewDecoder(resp.Body).Decode(&who); err != nil {
		t.Fatal(err)
	}
	return who
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// check compares an identity with a name and the groups besides system:authenticated.
func check(t *testing.T, got identity, name string, groups ...string) {
	t.Helper()
	if name != user.Anonymous {
		groups = append(groups, user.AllAuthenticated)
	}
	if got.Code != http.StatusOK || got.Name != name || !slices.Equal(got.Groups, groups) {
		t.Errorf("got %+v, want %s %v", got, name, groups)
	}
}

func refused(t *testing.T, got identity) {
	t.Helper()
	if got.Code != http.StatusUnauthorized {
		t.Errorf("got %+v, want a refusal", got)
	}
}
