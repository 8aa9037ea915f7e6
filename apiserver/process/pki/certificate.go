package pki

import (
	"cmp"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"byre/migrations"
)

// The lifetimes are those of kubeadm.
const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	leafLifetime      = 365 * 24 * time.Hour
	// renewBefore is the remaining validity below which a certificate is renewed.
	renewBefore = 30 * 24 * time.Hour
	// backdate allows for clients whose clock is behind the server's.
	backdate = 5 * time.Minute
	// keyType has keys that take microseconds. An RSA key of the same strength would take most of a
	// second of the first start.
	keyType = kubeadmapi.EncryptionAlgorithmECDSAP256
)

// certificateProfile is the required content of a leaf certificate. If NotAfter is zero, the lifetime is
// leafLifetime.
type certificateProfile pkiutil.CertConfig

func newProfile(name string, usage x509.ExtKeyUsage, groups ...string) certificateProfile {
	return certificateProfile{
		Config:              certutil.Config{CommonName: name, Organization: groups, Usages: []x509.ExtKeyUsage{usage}},
		EncryptionAlgorithm: keyType,
	}
}

func servingProfile(hosts []string) certificateProfile {
	p := newProfile("kube-apiserver", x509.ExtKeyUsageServerAuth)
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip == nil {
			p.AltNames.DNSNames = append(p.AltNames.DNSNames, host)
		} else {
			p.AltNames.IPs = append(p.AltNames.IPs, ip)
		}
	}
	return p
}

// clientProfile is the profile of the client certificate of a user with groups.
func clientProfile(name string, groups ...string) certificateProfile {
	return newProfile(name, x509.ExtKeyUsageClientAuth, groups...)
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
	for _, name := range p.AltNames.DNSNames {
		if !slices.Contains(cert.DNSNames, name) {
			return false
		}
	}
	for _, ip := range p.AltNames.IPs {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// addNamesOf adds the names of the certificate that is replaced. Otherwise servers that
// share a directory would remove each other's names at each start.
func (p *certificateProfile) addNamesOf(before *x509.Certificate) {
	p.AltNames.DNSNames = append(p.AltNames.DNSNames, before.DNSNames...)
	p.AltNames.IPs = append(p.AltNames.IPs, before.IPAddresses...)
}

// issue generates a key and a certificate of the profile, signed by the CA.
func (p certificateProfile) issue(by certificateAuthority, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	config := pkiutil.CertConfig(p)
	if config.NotBefore = now.Add(-backdate); config.NotAfter.IsZero() {
		config.NotAfter = now.Add(leafLifetime)
	}
	if config.NotAfter.After(by.cert.NotAfter) { // a leaf does not outlive its CA
		config.NotAfter = by.cert.NotAfter
	}
	return pkiutil.NewCertAndKey(by.cert, by.signer, &config)
}

// issuePEM is issue for a kubeconfig.
func (p certificateProfile) issuePEM(by certificateAuthority, now time.Time) (cert, key []byte, err error) {
	issued, signer, err := p.issue(by, now)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(signer)
	return pkiutil.EncodeCertPEM(issued), key, err
}

func sameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}

// issuedName is the name of the file in the directory that has the issued keys.
const issuedName = "issued.json"

// issued has, by the name of a leaf certificate's file, the fingerprints of the public keys that
// this program has generated for it, and of the certificates that it has signed for them.
//
// Invariant: a fingerprint is in the file before its key and its certificate are written
// (recordIssued), so that this program knows its own pair again, also after a crash between
// the two. A pair without a fingerprint is another's, whatever its name is and whoever signed
// it: kubeadm uses the same names, and its CA key may be here too. A certificate that another CA
// has signed for this program's key is another's too.
//
// By the name of a file with the suffix .bak it has the SHA-256 of what this program has written
// there (ensurer.backup). That of the kubeconfig is in a file beside the kubeconfig.
type issued map[string][]string

// certPrefix begins the fingerprint of a certificate.
const certPrefix = "cert-"

func readIssued(dir string) (issued, error) {
	path := filepath.Join(dir, issuedName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return issued{}, nil
	}
	if err != nil {
		return nil, err
	}
	var i issued
	if err := json.Unmarshal(data, &i); err != nil {
		return nil,
			fmt.Errorf("%s: %w: restore it, or remove it, and the certificates beside it are used and not renewed", path, err)
	}
	return i, nil
}

func (i issued) write(dir string) error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	return migrations.WriteFileOwned(filepath.Join(dir, issuedName), append(data, '\n'), keyMode)
}

// hasKey reports whether this program has generated the key for the certificate at certPath.
func (i issued) hasKey(certPath string, key crypto.PublicKey) bool {
	fingerprint, err := fingerprintOf(key)
	return err == nil && slices.Contains(i[filepath.Base(certPath)], fingerprint)
}

// hasCert reports whether this program has signed the certificate at path. A file of before has
// fingerprints of keys only.
func (i issued) hasCert(path string, cert *x509.Certificate) bool {
	known := i[filepath.Base(path)]
	hasCerts := slices.ContainsFunc(known, func(fingerprint string) bool {
		return strings.HasPrefix(fingerprint, certPrefix)
	})
	return i.hasKey(path, cert.PublicKey) && (!hasCerts || slices.Contains(known, certFingerprint(cert.Raw)))
}

// owns reports whether each file of the pair that exists is this program's.
func (i issued) owns(certPath string, p pair) bool {
	return (p.cert == nil || i.hasCert(certPath, p.cert)) && (p.signer == nil || i.hasKey(certPath, p.signer.Public()))
}

func fingerprintOf(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	return sum(der), nil
}

func certFingerprint(der []byte) string { return certPrefix + sum(der) }

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(digest[:])
}

// recordIssued adds the certificate and the key that are to replace what is in the files of a leaf,
// which are this program's. It keeps the fingerprints of these, and no others: they stay in place if
// the process ends before the files are written.
func (k *ensurer) recordIssued(l leaf, current pair, cert *x509.Certificate) error {
	certs, keys := [][]byte{cert.Raw}, []crypto.PublicKey{cert.PublicKey}
	if current.cert != nil {
		certs, keys = append(certs, current.cert.Raw), append(keys, current.cert.PublicKey)
	}
	if current.signer != nil {
		keys = append(keys, current.signer.Public())
	}
	var known []string
	for _, cert := range certs {
		known = append(known, certFingerprint(cert))
	}
	for _, key := range keys {
		fingerprint, err := fingerprintOf(key)
		if err != nil {
			return fmt.Errorf("%s: %w", l.keyPath, err)
		}
		known = append(known, fingerprint)
	}
	slices.Sort(known)
	k.issued[filepath.Base(l.certPath)] = slices.Compact(known)
	return k.issued.write(k.config.Dir)
}

const (
	keyMode  fs.FileMode = 0o600
	certMode fs.FileMode = 0o644
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readCert returns the first certificate of the file.
func readCert(path string) (*x509.Certificate, error) {
	certs, err := certutil.CertsFromFile(path)
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}

// pair is what is in the files of a certificate and its key: nil where a file does not exist.
type pair struct {
	cert   *x509.Certificate
	signer crypto.Signer
}

func readPair(certPath, keyPath string) (p pair, err error) {
	if p.cert, err = readCert(certPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if p.signer, err = readKey(keyPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	return p, nil
}

// isWhole reports whether there are a certificate and its key.
func (p pair) isWhole() bool {
	return p.cert != nil && p.signer != nil && sameKey(p.signer.Public(), p.cert.PublicKey)
}

func readKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: a key of type %T can't sign", path, key)
	}
	return signer, nil
}

// writeKey is write for a key.
func (k *ensurer) writeKey(path string, key crypto.Signer, others ...migrations.OwnedFile) error {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return k.write(path, data, keyMode, others...)
}

func (k *ensurer) writePublic(path string, key crypto.PublicKey) error {
	data, err := pkiutil.EncodePublicKeyPEM(key)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return k.write(path, data, certMode)
}

// write makes a file, and others with it. What they replace stays beside them. Where one can't be written, all stay
// as they are.
func (k *ensurer) write(path string, data []byte, mode fs.FileMode, others ...migrations.OwnedFile) error {
	files := append([]migrations.OwnedFile{{Path: path, Data: data, Mode: mode}}, others...)
	for _, f := range files {
		replaced, err := os.ReadFile(f.Path)
		if err == nil {
			err = k.backup(f.Path, replaced, f.Mode)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := migrations.WriteFilesOwned(files...); err != nil {
		return err
	}
	for _, f := range files {
		k.report.Written = append(k.report.Written, filepath.Base(f.Path))
	}
	return nil
}

// backup writes the content of the file at path to path.bak. If that is another's file, the
// administrator's own key for example, it is path.bak.1 and so on.
func (k *ensurer) backup(path string, content []byte, mode fs.FileMode) error {
	dir, known := filepath.Dir(path), k.issued
	if dir != filepath.Clean(k.config.Dir) { // the kubeconfig: the directory may be another program's
		var err error
		if known, err = readIssued(dir); err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		to := path + ".bak"
		if n > 0 {
			to += "." + strconv.Itoa(n)
		}
		var written []string
		before, err := os.ReadFile(to)
		switch {
		case err == nil && !slices.Contains(known[filepath.Base(to)], sum(before)):
			continue
		case err == nil:
			written = []string{sum(before)} // it stays if the process ends now
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		known[filepath.Base(to)] = append(written, sum(content))
		if err := known.write(dir); err != nil {
			return err
		}
		return migrations.WriteFileOwned(to, content, mode)
	}
}

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
