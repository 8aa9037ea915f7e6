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

// Config says which files Ensure provides.
type Config struct {
	// Dir is the directory of the certificates and keys. Ensure creates it if it is
	// missing.
	Dir string
	// Kubeconfig is the path of the administrator's kubeconfig; empty means none.
	Kubeconfig string
	// Server is the URL of the server in the kubeconfig.
	Server string
	// Hosts are the DNS names and IP addresses that apiserver.crt must have.
	Hosts []string
	// Now is the current time.
	Now time.Time
}

// kubeletClientName is the common name of the client certificate that the server
// presents to kubelets; kubeadm's.
const kubeletClientName = "kube-apiserver-kubelet-client"

// FrontProxyName is the common name of the front proxy's client certificate.
const FrontProxyName = "front-proxy-client"

// Files are the paths of the files that Ensure provides.
type Files struct {
	CACert, CAKey                     string
	ServingCert, ServingKey           string
	KubeletClientCert, KubeletKey     string
	FrontProxyCA, FrontProxyCAKey     string
	FrontProxyCert, FrontProxyKey     string
	ServiceAccountKey, ServiceAccount string
}

// Report says what Ensure has done.
type Report struct {
	// Written lists the names of the files that Ensure has written.
	Written []string
	// NotRenewable lists the certificates that should be renewed and cannot be,
	// because the key of their CA is kept elsewhere.
	NotRenewable []string
}

// Paths returns the paths of the files in dir, whether they exist or not.
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

// Ensure creates and renews the files in c.Dir and the kubeconfig. See the package comment.
func Ensure(c Config) (Files, Report, error) {
	files := Paths(c.Dir)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return files, Report{}, fmt.Errorf("certificate directory: %w", err)
	}
	unlock, err := lock(c.Dir)
	if err != nil {
		return files, Report{}, fmt.Errorf("certificate directory: %w", err)
	}
	defer unlock()
	k := ensurer{config: c, files: files}
	for _, step := range []func() error{k.ensureCAs, k.ensureLeaves, k.ensureServiceAccountKey, k.ensureKubeconfig} {
		if err := step(); err != nil {
			return files, k.report, err
		}
	}
	return files, k.report, nil
}

// ensurer is the state of one call of Ensure.
type ensurer struct {
	config Config
	files  Files
	report Report
	// ca and frontProxyCA are the two CAs. Their signers are nil if the key is kept
	// elsewhere.
	ca, frontProxyCA certificateAuthority
}

// certificateAuthority is a CA. signer is nil if its key is kept elsewhere.
type certificateAuthority struct {
	name   string
	cert   *x509.Certificate
	signer crypto.Signer
}

func (k *ensurer) ensureCAs() (err error) {
	if k.ca, err = k.ensureCA("kubernetes", k.files.CACert, k.files.CAKey); err != nil {
		return err
	}
	k.frontProxyCA, err = k.ensureCA("front-proxy-ca", k.files.FrontProxyCA, k.files.FrontProxyCAKey)
	return err
}

// ensureCA loads the CA at the two paths, and creates it if neither file exists. It never
// creates one file of the pair, because the existing other one belongs to another key.
func (k *ensurer) ensureCA(name, certPath, keyPath string) (certificateAuthority, error) {
	a := certificateAuthority{name: filepath.Base(certPath)}
	cert, err := readCert(certPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if exists(keyPath) {
			return a, fmt.Errorf("%s exists, but %s does not", keyPath, certPath)
		}
		a.cert, a.signer, err = newCertificateAuthority(name, k.config.Now)
		if err != nil {
			return a, err
		}
		return a, k.writePair(certPath, keyPath, [][]byte{a.cert.Raw}, a.signer)
	case err != nil:
		return a, err
	case !k.config.Now.Before(cert.NotAfter):
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

func (k *ensurer) ensureLeaves() error {
	return errors.Join(
		k.ensureLeaf(k.files.ServingCert, k.files.ServingKey, k.ca, servingProfile(k.config.Hosts)),
		k.ensureLeaf(k.files.KubeletClientCert, k.files.KubeletKey, k.ca,
			clientProfile(kubeletClientName, adminGroup)),
		k.ensureLeaf(k.files.FrontProxyCert, k.files.FrontProxyKey, k.frontProxyCA, clientProfile(FrontProxyName)),
	)
}

// ensureLeaf keeps the certificate at certPath if it satisfies p, and issues another one
// otherwise.
func (k *ensurer) ensureLeaf(certPath, keyPath string, by certificateAuthority, p certificateProfile) error {
	cert, err := readCert(certPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A crash between the two writes of writePair leaves a key without its certificate.
	usable := cert != nil && isPair(cert, keyPath)
	if usable && p.isSatisfiedBy(cert, by.cert, k.config.Now) {
		return nil
	}
	if by.signer == nil {
		if usable && k.config.Now.Before(cert.NotAfter) {
			k.report.NotRenewable = append(k.report.NotRenewable, filepath.Base(certPath))
			return nil
		}
		return fmt.Errorf("%s is missing or has expired, and there is no key of %s here to make another", certPath, by.name)
	}
	if cert != nil {
		p.addNamesOf(cert)
	}
	der, key, err := p.issue(by, k.config.Now)
	if err != nil {
		return err
	}
	return k.writePair(certPath, keyPath, [][]byte{der}, key)
}

// ensureServiceAccountKey creates the key that signs service account tokens, or sa.pub if
// only sa.key exists. It returns an error if only sa.pub exists.
func (k *ensurer) ensureServiceAccountKey() error {
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
