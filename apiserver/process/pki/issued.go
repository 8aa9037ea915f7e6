package pki

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"byre/migrations"
)

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
		return nil, fmt.Errorf("%s: %w: restore it, or remove it, and the certificates beside it are used and not renewed", path, err)
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
	hasCerts := slices.ContainsFunc(known, func(fingerprint string) bool { return strings.HasPrefix(fingerprint, certPrefix) })
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
func (k *ensurer) recordIssued(l leaf, current pair, der []byte, key crypto.PublicKey) error {
	certs, keys := [][]byte{der}, []crypto.PublicKey{key}
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
