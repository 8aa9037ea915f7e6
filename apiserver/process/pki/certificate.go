package pki

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// The lifetimes are those of kubeadm.
const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	leafLifetime      = 365 * 24 * time.Hour
	// renewBefore is the remaining validity below which a certificate is renewed.
	renewBefore = 30 * 24 * time.Hour
	// backdate allows for clients whose clock is behind the server's.
	backdate = 5 * time.Minute
)

// certificateProfile is the required content of a leaf certificate.
type certificateProfile struct {
	commonName    string
	organizations []string
	usage         x509.ExtKeyUsage
	dnsNames      []string
	ips           []net.IP
	// lifetime is how long the certificate is valid; 0 means leafLifetime.
	lifetime time.Duration
}

func servingProfile(hosts []string) certificateProfile {
	p := certificateProfile{commonName: "kube-apiserver", usage: x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		switch ip := net.ParseIP(host); {
		case ip == nil:
			p.dnsNames = append(p.dnsNames, host)
		case !slices.ContainsFunc(p.ips, ip.Equal):
			p.ips = append(p.ips, ip)
		}
	}
	return p
}

// clientProfile is the profile of the client certificate of a user with groups.
func clientProfile(name string, groups ...string) certificateProfile {
	return certificateProfile{commonName: name, organizations: groups, usage: x509.ExtKeyUsageClientAuth}
}

// isExpiring reports whether cert ends within renewBefore.
func isExpiring(cert *x509.Certificate, now time.Time) bool {
	return cert.NotAfter.Sub(now) < renewBefore
}

// isSatisfiedBy reports whether cert need not be renewed: it is not about to expire, or
// expires with the CA, is valid already, is signed by the CA, and has every name of the profile.
// It may have more names. A certificate that is not valid yet was issued while the clock was
// ahead. If its CA is not valid yet either, it stays: the clock may be behind, and no client would
// accept another certificate of that CA.
func (p certificateProfile) isSatisfiedBy(cert, by *x509.Certificate, now time.Time) bool {
	prolongs := isExpiring(cert, now) && cert.NotAfter.Before(by.NotAfter)
	isEarly := now.Before(cert.NotBefore) && !now.Before(by.NotBefore)
	if prolongs || isEarly || cert.CheckSignatureFrom(by) != nil {
		return false
	}
	for _, name := range p.dnsNames {
		if !slices.Contains(cert.DNSNames, name) {
			return false
		}
	}
	for _, ip := range p.ips {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// addNamesOf adds the names of the certificate that is replaced. Otherwise servers that
// share a directory would remove each other's names at each start.
func (p *certificateProfile) addNamesOf(before *x509.Certificate) {
	for _, name := range before.DNSNames {
		if !slices.Contains(p.dnsNames, name) {
			p.dnsNames = append(p.dnsNames, name)
		}
	}
	for _, ip := range before.IPAddresses {
		if !slices.ContainsFunc(p.ips, ip.Equal) {
			p.ips = append(p.ips, ip)
		}
	}
}

// issue generates a key and a certificate of the profile, signed by the CA.
func (p certificateProfile) issue(by certificateAuthority, now time.Time) (der []byte, key crypto.Signer, err error) {
	key, err = newKey()
	if err != nil {
		return nil, nil, err
	}
	ends := []time.Time{now.Add(cmp.Or(p.lifetime, leafLifetime)), by.cert.NotAfter}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: p.commonName, Organization: p.organizations},
		NotBefore: now.Add(-backdate),
		// A leaf does not outlive its CA.
		NotAfter:              slices.MinFunc(ends, time.Time.Compare),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{p.usage},
		BasicConstraintsValid: true,
		DNSNames:              p.dnsNames,
		IPAddresses:           p.ips,
	}
	der, err = x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the certificate of %s: %w", p.commonName, err)
	}
	return der, key, nil
}

// issuePEM is issue for a kubeconfig.
func (p certificateProfile) issuePEM(by certificateAuthority, now time.Time) (cert, key []byte, err error) {
	der, signer, err := p.issue(by, now)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(signer)
	return encodeCert(der), key, err
}

func newCertificateAuthority(name string, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("making the authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// newKey generates an ECDSA P-256 key, which takes microseconds. An RSA key of the same
// strength would take most of a second of the first start.
func newKey() (crypto.Signer, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func sameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
