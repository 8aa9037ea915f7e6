package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
)

// RenewableNames are the names of certificates that Renew accepts.
func RenewableNames() []string {
	return []string{nameAdmin, nameServing, nameKubeletClient, nameFrontProxy}
}

// Renew issues the named certificates anew. Each gets a new key, keeps its DNS names
// and IP addresses, and is valid for a year from c.Now. Renew uses Dir, Kubeconfig and
// Now of c. It does not renew CAs and the service account key, because everything that
// they have signed would no longer be trusted. A running server reloads the files. An
// error names the certificate that does not exist or cannot be renewed; those before it
// in names have been renewed.
func Renew(c Config, names ...string) error {
	for _, name := range names {
		switch {
		case name == nameCA || name == nameFrontProxyCA:
			return fmt.Errorf("%s is not renewed: all that it has signed would no longer be trusted", name)
		case !slices.Contains(RenewableNames(), name):
			return fmt.Errorf("there is no certificate %q: name one of %s, or all", name, strings.Join(RenewableNames(), ", "))
		}
	}
	if !exists(c.Dir) {
		return fmt.Errorf("%s does not exist: name the directory of a server that has been started", c.Dir)
	}
	unlock, err := lock(c.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	k := ensurer{config: c, files: Paths(c.Dir)}
	if err := k.loadCAs(); err != nil {
		return err
	}
	for _, name := range names {
		if err := k.renew(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// loadCAs loads the CAs. Unlike ensureCAs it does not create missing ones.
func (k *ensurer) loadCAs() error {
	for _, path := range []string{k.files.CACert, k.files.FrontProxyCA} {
		if !exists(path) {
			return fmt.Errorf("%s does not exist: name the directory of a server that has been started", path)
		}
	}
	return k.ensureCAs()
}

func (k *ensurer) renew(name string) error {
	switch name {
	case nameAdmin:
		return k.renewKubeconfig()
	case nameKubeletClient:
		return k.renewLeaf(k.files.KubeletClientCert, k.files.KubeletKey, k.ca, clientProfile(kubeletClientName, adminGroup))
	case nameFrontProxy:
		return k.renewLeaf(k.files.FrontProxyCert, k.files.FrontProxyKey, k.frontProxyCA, clientProfile(FrontProxyName))
	default:
		return k.renewLeaf(k.files.ServingCert, k.files.ServingKey, k.ca, servingProfile(nil))
	}
}

func (k *ensurer) renewLeaf(certPath, keyPath string, by certificateAuthority, p certificateProfile) error {
	cert, err := readCert(certPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: \"byre serve\" makes it when it starts", certPath)
	case err != nil:
		return err
	case cert.CheckSignatureFrom(by.cert) != nil:
		return fmt.Errorf("it is not signed by %s: renew it where it was issued, and replace %s and %s", by.name, filepath.Base(certPath), filepath.Base(keyPath))
	case by.signer == nil:
		return noKey(by)
	}
	p.addNamesOf(cert)
	der, key, err := p.issue(by, k.config.Now)
	if err != nil {
		return err
	}
	return k.writePair(certPath, keyPath, [][]byte{der}, key)
}

// renewKubeconfig renews the administrator's certificate. It changes nothing else in
// the file.
func (k *ensurer) renewKubeconfig() error {
	if _, err := readAdminCert(k.config.Kubeconfig); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no certificate of %s: \"byre serve\" makes the file when it starts", k.config.Kubeconfig, adminName)
	}
	if k.ca.signer == nil {
		return noKey(k.ca)
	}
	config, err := clientcmd.LoadFromFile(k.config.Kubeconfig)
	if err != nil {
		return err
	}
	if err := k.updateUser(config); err != nil {
		return err
	}
	return k.writeKubeconfig(config)
}

func noKey(by certificateAuthority) error {
	return fmt.Errorf("the key of %s is not in this directory: renew it where the key is kept", by.name)
}
