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
)

// issuedName is the name of the file in the directory that has the issued keys.
const issuedName = "issued.json"

// issued has, by the name of a leaf certificate's file, the SHA-256 of the public keys that
// this program has generated for it.
//
// Invariant: a fingerprint is in the file before its key and its certificate are written
// (recordIssued), so that this program knows its own pair again, also after a crash between
// the two. A pair without a fingerprint is another's, whatever its name is and whoever signed
// it: kubeadm uses the same names, and its CA key may be here too.
type issued map[string][]string

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

// has reports whether this program has generated the key for the certificate at certPath.
func (i issued) has(certPath string, key crypto.PublicKey) bool {
	fingerprint, err := fingerprintOf(key)
	return err == nil && slices.Contains(i[filepath.Base(certPath)], fingerprint)
}

func (i issued) hasCert(path string, cert *x509.Certificate) bool { return i.has(path, cert.PublicKey) }

// owns reports whether each file of the pair that exists is this program's.
func (i issued) owns(certPath string, p pair) bool {
	return (p.cert == nil || i.hasCert(certPath, p.cert)) && (p.key == nil || i.has(certPath, p.key))
}

func fingerprintOf(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// recordIssued adds the key that is to replace what is in the files of a leaf. It keeps the
// fingerprints of these: they stay in place if the process ends before the files are written.
func (k *ensurer) recordIssued(l leaf, current pair, key crypto.PublicKey) error {
	added, err := fingerprintOf(key)
	if err != nil {
		return fmt.Errorf("%s: %w", l.keyPath, err)
	}
	name := filepath.Base(l.certPath)
	kept := slices.DeleteFunc(k.issued[name], func(fingerprint string) bool { return !current.has(fingerprint) })
	k.issued[name] = append(kept, added)
	data, err := json.MarshalIndent(k.issued, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(k.config.Dir, issuedName), append(data, '\n'), keyMode)
}

// pair is what is in the two files of a leaf: nil where a file does not exist.
type pair struct {
	cert *x509.Certificate
	key  crypto.PublicKey
}

func readPair(l leaf) (p pair, err error) {
	if p.cert, err = readCert(l.certPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	signer, err := readKey(l.keyPath)
	switch {
	case err == nil:
		p.key = signer.Public()
	case !errors.Is(err, fs.ErrNotExist):
		return p, err
	}
	return p, nil
}

// isWhole reports whether there are a certificate and its key.
func (p pair) isWhole() bool {
	return p.cert != nil && p.key != nil && sameKey(p.key, p.cert.PublicKey)
}

// has reports whether a file has the public key of the fingerprint.
func (p pair) has(fingerprint string) bool {
	is := func(key crypto.PublicKey) bool {
		of, err := fingerprintOf(key)
		return err == nil && of == fingerprint
	}
	return p.cert != nil && is(p.cert.PublicKey) || p.key != nil && is(p.key)
}
