package auth

import (
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// certificateCacheSize bounds the certificates that are remembered.
	certificateCacheSize = 4096
	// cachedChain is the longest list of certificates, as a client presents
	// it, that is remembered.
	cachedChain = 3
)

// certificates authenticates client certificates, and remembers whom one
// belongs to: upstream verifies the signatures again on each request of a
// connection, which costs more than most requests do otherwise.
//
// What is remembered is used only while verifying could have no other result:
// the client presents the very same certificates, the CAs are the same, and no
// certificate of a chain has expired. (Kubernetes has no revocation lists.)
//
// It says nothing where it does not know, so that what follows it in the union
// does and reports all that upstream's authenticators do and report.
type certificates struct {
	options x509request.VerifyOptionFunc
	// proxyHeaders are those in which a front proxy names users. A request
	// with one of them is left to upstream's authenticators, which look at
	// the proxy's certificate first.
	proxyHeaders []string
	clock        clock.PassiveClock
	known        *lru.Cache // from presented to *verified
}

// presented identifies a client's certificates. crypto/tls gives equal
// certificates the same address for as long as one of them is in use, and being
// in the cache is a use.
type presented [cachedChain]*x509.Certificate

type verified struct {
	roots    *x509.CertPool
	until    time.Time
	response *authenticator.Response
}

func newCertificates(options x509request.VerifyOptionFunc, proxyHeaders []string) *certificates {
	return &certificates{
		options:      options,
		proxyHeaders: proxyHeaders,
		clock:        clock.RealClock{},
		known:        lru.New(certificateCacheSize),
	}
}

// AuthenticateRequest implements authenticator.Request. It returns no errors.
func (c *certificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates) > cachedChain {
		return nil, false, nil
	}
	for _, header := range c.proxyHeaders {
		if len(r.Header.Values(header)) > 0 {
			return nil, false, nil
		}
	}
	options, ok := c.options()
	if !ok {
		return nil, false, nil
	}
	var key presented
	copy(key[:], r.TLS.PeerCertificates)
	if found, ok := c.known.Get(key); ok {
		v := found.(*verified)
		if v.roots == options.Roots && c.clock.Now().Before(v.until) {
			return v.response, true, nil
		}
	}
	return c.verify(key, options, r)
}

func (c *certificates) verify(key presented, options x509.VerifyOptions, r *http.Request) (*authenticator.Response, bool, error) {
	v := &verified{roots: options.Roots}
	options.CurrentTime = c.clock.Now()
	verifier := x509request.New(options, x509request.UserConversionFunc(
		func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
			v.until = chain[0].NotAfter
			for _, certificate := range chain[1:] {
				if certificate.NotAfter.Before(v.until) {
					v.until = certificate.NotAfter
				}
			}
			return x509request.CommonNameUserConversion(chain)
		}))
	response, ok, err := group.NewAuthenticatedGroupAdder(verifier).AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, false, nil
	}
	v.response = response
	c.known.Add(key, v)
	return v.response, true, nil
}
