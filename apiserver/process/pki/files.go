package pki

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"byre/migrations"
)

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
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return k.write(path, pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der}), certMode)
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

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}
