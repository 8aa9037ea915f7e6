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
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/component-base/metrics/legacyregistry"
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

// TestCertificateCache_ObservesTheExpiryForEachRequest: each request adds one observation to
// upstream's histogram, which alerts on expiring certificates read: those that are answered from
// the cache, and those whose verification fails, which upstream's authenticator repeats.
func TestCertificateCache_ObservesTheExpiryForEachRequest(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	verify := verifiedBy(ca)
	both := union.New(newCachedX509Authenticator(verify, nil), x509request.NewDynamic(verify, x509request.CommonNameUserConversion))
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
