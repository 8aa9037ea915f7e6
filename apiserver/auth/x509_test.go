package auth

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
)

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
