package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"byre/migrations"
)

// Config says which files Ensure provides.
type Config struct {
	// Dir is the directory of the certificates and keys. Ensure creates it if it is
	// missing.
	Dir string
	// Kubeconfig is the path of the administrator's kubeconfig; empty means none.
	Kubeconfig string
	// AdminGroup is the administrator's group in a new kubeconfig; "" means ClusterAdmins. If it
	// is SystemMasters, that is the group of the client of kubelets too.
	AdminGroup string
	// Server is the URL of the server in the kubeconfig.
	Server string
	// ServingCert is the file of the certificate that is served, and RootCA that of the CA
	// that clients verify it by. If they are empty, those in Dir are used.
	ServingCert, RootCA string
	// Hosts are the DNS names and IP addresses that apiserver.crt must have.
	Hosts []string
	// Now is the current time.
	Now time.Time
}

// KubeletClientName is the common name of the client certificate that the server presents to
// kubelets. As with kubeadm, the user is in no group: the bootstrap policy binds it to the
// ClusterRole system:kubelet-api-admin, of which a kubelet learns by a SubjectAccessReview.
const KubeletClientName = "kube-apiserver-kubelet-client"

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
	// Foreign lists the leaf certificates that this program has not issued. They are used as
	// they are.
	Foreign []string
	// NotRenewable lists the certificates that should be renewed and cannot be, because
	// another has issued them or because the key of their CA is kept elsewhere.
	NotRenewable []string
	// Failed says why certificates that should be renewed, or the kubeconfig, could not be written; nil if
	// they were. Those in place are used.
	Failed error
	// Unverified says why clients that trust the root CA do not accept the certificate that
	// is served; nil if they do.
	Unverified error
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
	// Others need not see which keys there are. A directory that exists keeps its mode: the
	// administrator's own may have to be readable by others, as kubeadm's is.
	if err := migrations.MkdirAllOwned(c.Dir, 0o700); err != nil {
		return files, Report{}, fmt.Errorf("certificate directory: %w", err)
	}
	k, unlock, err := open(c)
	if err != nil {
		return files, Report{}, fmt.Errorf("certificate directory: %w", err)
	}
	defer unlock()
	for _, step := range []func() error{k.ensureCAs, k.ensureLeaves, k.ensureServiceAccountKey, k.checkServing} {
		if err := step(); err != nil {
			return files, k.report, err
		}
	}
	k.report.Failed = errors.Join(k.report.Failed, k.ensureKubeconfig())
	return files, k.report, nil
}

// open locks the directory until unlock is called.
func open(c Config) (k *ensurer, unlock func(), err error) {
	if unlock, err = lock(c.Dir); err != nil {
		return nil, nil, err
	}
	k = &ensurer{config: c, files: Paths(c.Dir)}
	if k.issued, err = readIssued(c.Dir); err != nil {
		unlock()
		return nil, nil, err
	}
	return k, unlock, nil
}

// ensurer is the state of one call of Ensure.
type ensurer struct {
	config Config
	files  Files
	issued issued
	report Report
	// ca and frontProxyCA are the two CAs. Their signers are nil if the key is kept
	// elsewhere.
	ca, frontProxyCA certificateAuthority
	// accepts reports whether the certificate that is served has a name. serverName is the
	// name that the kubeconfig must expect of it, if it is not that of the address.
	accepts    func(name string) bool
	serverName string
}

// certificateAuthority is a CA. signer is nil if its key is kept elsewhere.
type certificateAuthority struct {
	name string
	pair
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
	p, err := readPair(certPath, keyPath)
	if err == nil && p.cert == nil {
		p, err = k.createCA(name, certPath, keyPath)
	}
	a := certificateAuthority{filepath.Base(certPath), p}
	switch {
	case err != nil:
		return a, err
	case !k.config.Now.Before(p.cert.NotAfter):
		return a, fmt.Errorf("%s expired on %s", certPath, p.cert.NotAfter.UTC().Format(time.RFC3339))
	case p.signer != nil && !p.isWhole():
		return a, fmt.Errorf("%s is not the key of %s", keyPath, certPath)
	}
	return a, nil
}

// createCA writes the certificate under a temporary name, then the key, and then renames the
// certificate. If a process ends between these steps, the next one finds the key with the temporary
// file and renames that. A certificate that is lost later has no such file.
func (k *ensurer) createCA(name, certPath, keyPath string) (pair, error) {
	temporary := certPath + ".new"
	p, err := readPair(temporary, keyPath)
	if err == nil && p.signer == nil {
		p.cert, p.signer, err = pkiutil.NewCertificateAuthority(&pkiutil.CertConfig{
			Config:              certutil.Config{CommonName: name, NotBefore: k.config.Now.Add(-backdate)},
			NotAfter:            k.config.Now.Add(authorityLifetime),
			EncryptionAlgorithm: keyType,
		})
		if err == nil {
			err = migrations.WriteFileOwned(temporary, pkiutil.EncodeCertPEM(p.cert), certMode)
		}
		if err == nil {
			err = k.writeKey(keyPath, p.signer)
		}
	}
	switch {
	case err != nil:
		return p, err
	case !p.isWhole():
		return p, fmt.Errorf("%s exists, but %s does not", keyPath, certPath)
	}
	k.report.Written = append(k.report.Written, filepath.Base(certPath))
	return p, os.Rename(temporary, certPath)
}

// leaf is a leaf certificate, and what is issued in its place.
type leaf struct {
	certPath, keyPath string
	by                certificateAuthority
	profile           certificateProfile
}

// leaf returns the leaf of a name. The caller has loaded the CAs.
func (k *ensurer) leaf(name string) leaf {
	f := k.files
	switch name {
	case nameKubeletClient:
		profile := clientProfile(KubeletClientName)
		if k.config.AdminGroup == SystemMasters { // without RBAC nothing else gives it rights
			profile.Organization = []string{SystemMasters}
		}
		return leaf{f.KubeletClientCert, f.KubeletKey, k.ca, profile}
	case nameFrontProxy:
		return leaf{f.FrontProxyCert, f.FrontProxyKey, k.frontProxyCA, clientProfile(FrontProxyName)}
	default:
		return leaf{f.ServingCert, f.ServingKey, k.ca, servingProfile(k.config.Hosts)}
	}
}

func (k *ensurer) ensureLeaves() error {
	var errs []error
	for _, name := range []string{nameServing, nameKubeletClient, nameFrontProxy} {
		errs = append(errs, k.ensureLeaf(k.leaf(name)))
	}
	return errors.Join(errs...)
}

// ensureLeaf issues a certificate if there is none, or if the one that this program has
// issued does not satisfy the profile. It keeps what another has issued.
func (k *ensurer) ensureLeaf(l leaf) error {
	name, now := filepath.Base(l.certPath), k.config.Now
	current, err := readPair(l.certPath, l.keyPath)
	if err != nil {
		return err
	}
	switch owned := k.issued.owns(l.certPath, current); {
	case owned && current.isWhole() && l.profile.isSatisfiedBy(current.cert, l.by.cert, now):
		return nil
	case !owned && !current.isWhole():
		return fmt.Errorf(
			"%s and %s are not a pair, and byre did not issue them: put a pair there, or move both away, and byre issues one",
			l.certPath, l.keyPath)
	case !owned:
		k.report.Foreign = append(k.report.Foreign, name)
		if isExpiring(current.cert, now) {
			k.report.NotRenewable = append(k.report.NotRenewable, name)
		}
		return nil
	case l.by.signer == nil && current.isWhole():
		k.report.NotRenewable = append(k.report.NotRenewable, name)
		return nil
	case l.by.signer == nil:
		return fmt.Errorf("%s or its key is missing, and there is no key of %s here to issue another", l.certPath, l.by.name)
	}
	err = k.issue(l, current)
	if current.isWhole() {
		k.report.Failed, err = errors.Join(k.report.Failed, err), nil
	}
	return err
}

// issue replaces the files of a leaf, which are this program's. A crash between the two
// renames leaves a key without its certificate, which ensureLeaf repairs.
func (k *ensurer) issue(l leaf, current pair) error {
	if current.cert != nil {
		l.profile.addNamesOf(current.cert)
		l.profile.Organization = current.cert.Subject.Organization // a renewal changes no rights
	}
	cert, key, err := l.profile.issue(l.by, k.config.Now)
	if err != nil {
		return err
	}
	if err := k.recordIssued(l, current, cert); err != nil {
		return err
	}
	data := pkiutil.EncodeCertPEM(cert)
	return k.writeKey(l.keyPath, key, migrations.OwnedFile{Path: l.certPath, Data: data, Mode: certMode})
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
	signer, err := pkiutil.NewPrivateKey(keyType)
	if err != nil {
		return err
	}
	if err := k.writeKey(k.files.ServiceAccountKey, signer); err != nil {
		return err
	}
	return k.writePublic(k.files.ServiceAccount, signer.Public())
}

// lock locks the directory against other processes. It waits until no other process holds
// the lock. The lock is a flock on the directory itself: it needs no lock file, and the
// kernel releases it when the process dies.
func lock(dir string) (unlock func(), err error) {
	handle, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(handle.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { handle.Close() }, nil
}
