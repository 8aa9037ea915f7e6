package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Status describes the certificates of a directory, in the form of "kubeadm certs
// check-expiration".
type Status struct {
	Certificates           []CertificateStatus `json:"certificates"`
	CertificateAuthorities []CertificateStatus `json:"certificateAuthorities"`
}

// CertificateStatus describes one certificate.
type CertificateStatus struct {
	// Name is the name of the file, without ".crt".
	Name string `json:"name"`
	// Missing is true if the file does not exist; all other fields but Name are zero
	// then.
	Missing bool `json:"missing,omitempty"`
	// Subject is the distinguished name, and Names are the DNS names and IP addresses.
	Subject string   `json:"subject,omitempty"`
	Names   []string `json:"names,omitempty"`
	// ExpirationDate is the end of the validity; ResidualTimeSeconds is negative after it.
	ExpirationDate      time.Time `json:"expirationDate,omitzero"`
	ResidualTimeSeconds int64     `json:"residualTimeSeconds"`
	// CAName is the name of the CA of the directory that has signed the certificate. If
	// another CA has, it is that CA's distinguished name. It is empty for a CA.
	CAName string `json:"caName,omitempty"`
	// ExternallyManaged is true if this program does not renew the certificate: another has
	// issued it, or the key of its CA is not in the directory.
	ExternallyManaged bool `json:"externallyManaged"`
}

// The names of certificates in Status and for Renew.
const (
	nameCA            = "ca"
	nameFrontProxyCA  = "front-proxy-ca"
	nameServing       = "apiserver"
	nameKubeletClient = "apiserver-kubelet-client"
	nameFrontProxy    = "front-proxy-client"
	nameAdmin         = "admin.kubeconfig"
)

// Inspect reads the certificates in dir and the administrator's kubeconfig, and changes
// nothing.
func Inspect(dir, kubeconfig string, now time.Time) (Status, error) {
	var status Status
	files := Paths(dir)
	ca, err := inspectCA(nameCA, files.CACert, files.CAKey, now, &status)
	if err != nil {
		return status, err
	}
	frontProxyCA, err := inspectCA(nameFrontProxyCA, files.FrontProxyCA, files.FrontProxyCAKey, now, &status)
	if err != nil {
		return status, err
	}
	issued, err := readIssued(dir)
	if err != nil {
		return status, err
	}
	for _, c := range []struct {
		name, path string
		by         certificateAuthority
		read       func(path string) (*x509.Certificate, error)
		isIssued   func(path string, cert *x509.Certificate) bool
	}{
		{nameAdmin, kubeconfig, ca, readAdminCert, func(_ string, cert *x509.Certificate) bool { return isAdmin(cert) }},
		{nameServing, files.ServingCert, ca, readCert, issued.hasCert},
		{nameKubeletClient, files.KubeletClientCert, ca, readCert, issued.hasCert},
		{nameFrontProxy, files.FrontProxyCert, frontProxyCA, readCert, issued.hasCert},
	} {
		cert, err := c.read(c.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return status, err
		}
		entry := describe(c.name, cert, now)
		if cert != nil {
			entry.CAName = cert.Issuer.String()
			if c.by.cert != nil && cert.CheckSignatureFrom(c.by.cert) == nil {
				entry.CAName = c.by.name
			}
			entry.ExternallyManaged = c.by.signer == nil || !c.isIssued(c.path, cert)
		}
		status.Certificates = append(status.Certificates, entry)
	}
	return status, nil
}

// inspectCA adds a CA to the status and returns it. The result has no cert if the
// certificate is missing, and no signer if the key is.
func inspectCA(name, certPath, keyPath string, now time.Time, status *Status) (certificateAuthority, error) {
	p, err := readPair(certPath, keyPath)
	if err != nil {
		return certificateAuthority{}, err
	}
	entry := describe(name, p.cert, now)
	entry.ExternallyManaged = p.cert != nil && p.signer == nil
	status.CertificateAuthorities = append(status.CertificateAuthorities, entry)
	return certificateAuthority{name, p}, nil
}

func describe(name string, cert *x509.Certificate, now time.Time) CertificateStatus {
	if cert == nil {
		return CertificateStatus{Name: name, Missing: true}
	}
	names := append([]string(nil), cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	return CertificateStatus{
		Name: name, Subject: cert.Subject.String(), Names: names, ExpirationDate: cert.NotAfter.UTC(),
		ResidualTimeSeconds: int64(cert.NotAfter.Sub(now) / time.Second),
	}
}

// isAdmin reports whether this program has issued the certificate of an administrator's
// kubeconfig: nobody else names a user byre-admin.
func isAdmin(cert *x509.Certificate) bool { return cert.Subject.CommonName == adminName }

// readAdminCert returns the administrator's certificate. Its error is fs.ErrNotExist if there
// is no kubeconfig or it has other credentials.
func readAdminCert(path string) (*x509.Certificate, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	user := config.AuthInfos[adminName]
	if user == nil || len(user.ClientCertificateData) == 0 {
		return nil, fs.ErrNotExist
	}
	block, _ := pem.Decode(user.ClientCertificateData)
	if block == nil {
		return nil, fmt.Errorf("%s: the certificate of %s is not PEM", filepath.Base(path), adminName)
	}
	return x509.ParseCertificate(block.Bytes)
}
