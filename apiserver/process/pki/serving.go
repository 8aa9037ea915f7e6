package pki

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

// VerifyServing returns an error if a client that trusts the certificates in rootCAFile, and
// no others, does not accept the serving certificate in certFile with its intermediates. It
// does not check names.
func VerifyServing(certFile, rootCAFile string, now time.Time) error {
	return verify(certFile, rootCAFile, now, x509.ExtKeyUsageServerAuth)
}

// VerifyClient is VerifyServing for the certificate of a client.
func VerifyClient(certFile, rootCAFile string, now time.Time) error {
	return verify(certFile, rootCAFile, now, x509.ExtKeyUsageClientAuth)
}

func verify(certFile, rootCAFile string, now time.Time, usage x509.ExtKeyUsage) error {
	certs, err := certutil.CertsFromFile(certFile)
	if err != nil {
		return err
	}
	roots, err := certutil.NewPool(rootCAFile)
	if err != nil {
		return err
	}
	intermediates := x509.NewCertPool()
	for _, cert := range certs[1:] {
		intermediates.AddCert(cert)
	}
	_, err = certs[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return fmt.Errorf("%s is not verified by %s: %w", certFile, rootCAFile, err)
	}
	return nil
}

// rootCA is the file with the CA that clients verify the server by.
func (k *ensurer) rootCA() string { return cmp.Or(k.config.RootCA, k.files.CACert) }

// checkServing reports whether clients can verify the server by the root CA, and finds the name
// that they must expect if the certificate does not have the address of the kubeconfig.
func (k *ensurer) checkServing() error {
	certFile := cmp.Or(k.config.ServingCert, k.files.ServingCert)
	k.report.Unverified = VerifyServing(certFile, k.rootCA(), k.config.Now)
	cert, err := readCert(certFile)
	if err != nil {
		return err
	}
	address, err := url.Parse(k.config.Server)
	if err != nil {
		return err
	}
	k.accepts = func(name string) bool { return cert.VerifyHostname(name) == nil }
	if k.accepts(address.Hostname()) {
		return nil
	}
	for _, name := range append(k.config.Hosts, cert.DNSNames...) {
		if name = strings.Replace(name, "*", "kubernetes", 1); k.accepts(name) {
			k.serverName = name
			return nil
		}
	}
	return nil
}
