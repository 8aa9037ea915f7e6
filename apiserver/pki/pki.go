package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Request says what Ensure is to provide.
type Request struct {
	// Dir holds the certificates and keys; it is made when missing.
	Dir string
	// Kubeconfig is the path of the administrator's kubeconfig; empty for none.
	Kubeconfig string
	// Server is the URL that the kubeconfig points to.
	Server string
	// Hosts are the DNS names and IP addresses that apiserver.crt must cover.
	Hosts []string
	// Now is the time to judge expiry by.
	Now time.Time
}

// FrontProxyName is the common name of the front proxy's client certificate.
const FrontProxyName = "front-proxy-client"

// Files are the paths of what Ensure provides.
type Files struct {
	CACert, CAKey                     string
	ServingCert, ServingKey           string
	KubeletClientCert, KubeletKey     string
	FrontProxyCA, FrontProxyCAKey     string
	FrontProxyCert, FrontProxyKey     string
	ServiceAccountKey, ServiceAccount string
}

// Report says what Ensure did.
type Report struct {
	// Made lists the files written, by name.
	Made []string
	// Stale lists certificates that should be renewed but can't be, since the
	// key of their authority is not here.
	Stale []string
}

// Paths returns where the files of dir are, whether they exist or not.
func Paths(dir string) Files {
	in := func(name string) string { return filepath.Join(dir, name) }
	return Files{
		CACert: in("ca.crt"), CAKey: in("ca.key"),
		ServingCert: in("apiserver.crt"), ServingKey: in("apiserver.key"),
		KubeletClientCert: in("apiserver-kubelet-client.crt"), KubeletKey: in("apiserver-kubelet-client.key"),
		FrontProxyCA: in("front-proxy-ca.crt"), FrontProxyCAKey: in("front-proxy-ca.key"),
		FrontProxyCert: in("front-proxy-client.crt"), FrontProxyKey: in("front-proxy-client.key"),
		ServiceAccountKey: in("sa.key"), ServiceAccount: in("sa.pub"),
	}
}

// Ensure brings the directory and the kubeconfig of r into order.
func Ensure(r Request) (Files, Report, error) {
	files := Paths(r.Dir)
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return files, Report{}, fmt.Errorf("certificate directory: %w", err)
	}
	unlock, err := lock(r.Dir)
	if err != nil {
		return files, Report{}, fmt.Errorf("certificate directory: %w", err)
	}
	defer unlock()
	k := ensurer{request: r, files: files}
	for _, step := range []func() error{k.authorities, k.leaves, k.serviceAccount, k.kubeconfig} {
		if err := step(); err != nil {
			return files, k.report, err
		}
	}
	return files, k.report, nil
}

// ensurer is one run of Ensure.
type ensurer struct {
	request Request
	files   Files
	report  Report
	// root and front are the two authorities; their signers are nil where the
	// key is kept elsewhere.
	root, front authority
}

// authority is a certificate that signs others.
type authority struct {
	name   string
	cert   *x509.Certificate
	signer crypto.Signer
}

func (k *ensurer) authorities() (err error) {
	if k.root, err = k.authority("kubernetes", k.files.CACert, k.files.CAKey); err != nil {
		return err
	}
	k.front, err = k.authority("front-proxy-ca", k.files.FrontProxyCA, k.files.FrontProxyCAKey)
	return err
}

// authority loads the authority under the two paths, and makes it when neither
// exists. It never makes half of a pair: another half may be in use elsewhere.
func (k *ensurer) authority(name, certPath, keyPath string) (authority, error) {
	a := authority{name: filepath.Base(certPath)}
	cert, err := readCert(certPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if exists(keyPath) {
			return a, fmt.Errorf("%s exists, but %s does not", keyPath, certPath)
		}
		a.cert, a.signer, err = newAuthority(name, k.request.Now)
		if err != nil {
			return a, err
		}
		return a, k.writePair(certPath, keyPath, [][]byte{a.cert.Raw}, a.signer)
	case err != nil:
		return a, err
	case !k.request.Now.Before(cert.NotAfter):
		return a, fmt.Errorf("%s expired on %s", certPath, cert.NotAfter.UTC().Format(time.RFC3339))
	}
	a.cert = cert
	a.signer, err = readKey(keyPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if a.signer != nil && !sameKey(a.signer.Public(), cert.PublicKey) {
		return a, fmt.Errorf("%s is not the key of %s", keyPath, certPath)
	}
	return a, nil
}

func (k *ensurer) leaves() error {
	return errors.Join(
		k.leaf(k.files.ServingCert, k.files.ServingKey, k.root, servingProfile(k.request.Hosts)),
		k.leaf(k.files.KubeletClientCert, k.files.KubeletKey, k.root,
			clientProfile("kube-apiserver-kubelet-client", "system:masters")),
		k.leaf(k.files.FrontProxyCert, k.files.FrontProxyKey, k.front, clientProfile(FrontProxyName, "")),
	)
}

// leaf keeps the certificate under certPath while it is good for p, and makes
// another otherwise.
func (k *ensurer) leaf(certPath, keyPath string, by authority, p profile) error {
	cert, err := readCert(certPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	usable := cert != nil && exists(keyPath)
	if usable && p.fits(cert, by.cert, k.request.Now) {
		return nil
	}
	if by.signer == nil {
		if usable && k.request.Now.Before(cert.NotAfter) {
			k.report.Stale = append(k.report.Stale, filepath.Base(certPath))
			return nil
		}
		return fmt.Errorf("%s is missing or has expired, and there is no key of %s here to make another", certPath, by.name)
	}
	if cert != nil {
		p.keep(cert)
	}
	der, key, err := p.issue(by, k.request.Now)
	if err != nil {
		return err
	}
	return k.writePair(certPath, keyPath, [][]byte{der}, key)
}

// serviceAccount makes the key that signs service account tokens. sa.pub alone
// is enough for a server that only verifies them.
func (k *ensurer) serviceAccount() error {
	key, err := readKey(k.files.ServiceAccountKey)
	switch {
	case err == nil:
		if exists(k.files.ServiceAccount) {
			return nil
		}
		return k.writePublic(k.files.ServiceAccount, key.Public())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case exists(k.files.ServiceAccount):
		return fmt.Errorf("%s exists, but %s does not", k.files.ServiceAccount, k.files.ServiceAccountKey)
	}
	signer, err := newKey()
	if err != nil {
		return err
	}
	if err := k.writeKey(k.files.ServiceAccountKey, signer); err != nil {
		return err
	}
	return k.writePublic(k.files.ServiceAccount, signer.Public())
}
