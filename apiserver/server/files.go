package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/util/webhook"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"byre/apiserver/process/pki"
)

// namedFile is a file that a flag names. read fails if it can't be used.
type namedFile struct {
	flag, path string
	read       func(path string) error
}

// without makes the read of a namedFile from a function that returns the content too.
func without[T any](read func(path string) (T, error)) func(path string) error {
	return func(path string) error {
		_, err := read(path)
		return err
	}
}

// checkFiles reads the files that flags name, so that a wrong one is found before the server
// writes anything. Validate has read those that it needs itself; the assembly reads
// --encryption-provider-config first, because that opens connections. It returns one error for
// each file.
func (c *Completed) checkFiles() []error {
	var errs []error
	for _, f := range append(c.namedFiles(), c.namedPairs()...) {
		if f.path == "" || c.willMake(f.path) {
			continue
		}
		if err := f.read(f.path); err != nil {
			if !strings.Contains(err.Error(), f.path) { // some of upstream's errors name the file
				err = fmt.Errorf("%s: %w", f.path, err)
			}
			errs = append(errs, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	return errs
}

func (c *Completed) namedFiles() []namedFile {
	certs, kubeconfig := without(certutil.CertsFromFile), func(path string) error {
		_, err := webhook.LoadKubeconfig(path, nil)
		return err
	}
	authentication := func(path string) error {
		_, err := (&kubeoptions.BuiltInAuthenticationOptions{AuthenticationConfigFile: path}).ToAuthenticationConfig()
		return err
	}
	a := c.Auth.Authentication
	files := []namedFile{
		{"root-ca-file", c.Serving.RootCAFile, c.readRootCA},
		{"client-ca-file", a.ClientCert.ClientCA, certs},
		{"requestheader-client-ca-file", a.RequestHeader.ClientCAFile, certs},
		{"oidc-ca-file", a.OIDC.CAFile, certs},
		{"kubelet-certificate-authority", c.Cluster.Kubelet.TLSClientConfig.CAFile, certs},
		{"service-account-signing-key-file", a.SigningKeyFile, without(keyutil.PrivateKeyFromFile)},
		{"token-auth-file", a.TokenFile.TokenFile, without(tokenfile.NewCSV)},
		{"authentication-config", a.AuthenticationConfigFile, authentication},
		{"authentication-token-webhook-config-file", a.WebHook.ConfigFile, kubeconfig},
		{"authorization-policy-file", c.Auth.Authorization.PolicyFile, without(abac.NewFromFile)},
		{"authorization-webhook-config-file", c.Auth.Authorization.WebhookConfigFile, kubeconfig},
		{"audit-policy-file", c.Audit.PolicyFile, without(policy.LoadPolicyFromFile)},
		{"audit-webhook-config-file", c.Audit.WebhookOptions.ConfigFile, kubeconfig},
		{"admission-control-config-file", c.Admission.GenericAdmission.ConfigFile, func(string) error { return c.Admission.CheckConfiguration() }},
	}
	for _, path := range a.ServiceAccounts.KeyFiles {
		files = append(files, namedFile{"service-account-key-file", path, without(keyutil.PublicKeysFromFile)})
	}
	return files
}

// namedPairs are the certificates with their keys. A key without a certificate has been refused.
func (c *Completed) namedPairs() []namedFile {
	pair := func(flag, cert, key string) namedFile {
		return namedFile{flag, cert, func(string) error {
			if c.willMake(key) {
				return nil
			}
			_, err := tls.LoadX509KeyPair(cert, key)
			return err
		}}
	}
	kubelet := c.Cluster.Kubelet.TLSClientConfig
	pairs := []namedFile{
		pair("tls-cert-file and --tls-private-key-file", c.Serving.CertFile, c.Serving.KeyFile),
		pair("proxy-client-cert-file and --proxy-client-key-file", c.Cluster.ProxyCertFile, c.Cluster.ProxyKeyFile),
		pair("kubelet-client-certificate and --kubelet-client-key", kubelet.CertFile, kubelet.KeyFile),
	}
	for _, named := range c.Serving.SNICertKeys {
		pairs = append(pairs, pair("tls-sni-cert-key", named.CertFile, named.KeyFile))
	}
	return pairs
}

// readRootCA checks too that the CA verifies the certificate that is served, where a flag names
// it. A certificate that has expired, or is not valid yet, is served all the same: pki.Report.Unverified
// tells of it.
func (c *Completed) readRootCA(path string) error {
	if c.Serving.CertFile == "" {
		_, err := certutil.CertsFromFile(path)
		return err
	}
	err := pki.VerifyServing(c.Serving.CertFile, path, time.Now())
	if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return pki.VerifyServing(c.Serving.CertFile, path, invalid.Cert.NotAfter)
	}
	return err
}

// willMake reports whether the server may make the file, which a flag may name too.
func (c *Completed) willMake(path string) bool {
	_, err := os.Stat(path)
	return err != nil && filepath.Dir(path) == filepath.Clean(c.CertDir)
}
