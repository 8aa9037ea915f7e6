package auth

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

// abstractSocket matches the names of abstract sockets that kube-apiserver accepts.
var abstractSocket = regexp.MustCompile(`^@([a-zA-Z0-9_-]+\.)*[a-zA-Z0-9_-]+$`)

// Validate returns one error for each invalid flag.
func (o *AuthenticationOptions) Validate() []error {
	checked, accounts := o.BuiltInAuthenticationOptions, *o.ServiceAccounts
	checked.ServiceAccounts = &accounts
	checked.ClientCert = nil // validateOverlap is stricter than upstream's check
	if o.SigningEndpoint != "" {
		accounts.KeyFiles = []string{o.SigningEndpoint} // upstream requires keys: the signer has them
	}
	errs := checked.Validate()
	if err := o.validateOverlap(); err != nil {
		errs = append(errs, err)
	}
	switch {
	case o.SigningEndpoint == "" && o.SigningKeyFile == "":
		errs = append(errs, errors.New("--service-account-signing-key-file is required"))
	case o.SigningEndpoint != "" && (o.SigningKeyFile != "" || len(o.ServiceAccounts.KeyFiles) > 0):
		errs = append(errs, errors.New("--service-account-signing-endpoint excludes --service-account-signing-key-file and --service-account-key-file"))
	case strings.HasPrefix(o.SigningEndpoint, "@") && !abstractSocket.MatchString(o.SigningEndpoint):
		errs = append(errs, fmt.Errorf("--service-account-signing-endpoint %q is not the name of an abstract socket", o.SigningEndpoint))
	}
	if longest := accounts.MaxExpiration; longest != 0 && (longest < time.Hour || longest > (1<<32)*time.Second) {
		errs = append(errs, fmt.Errorf("--service-account-max-token-expiration must be between 1 hour and 2^32 seconds, not %v", longest))
	}
	return errs
}

// validateOverlap returns an error if users and front proxies share a CA and
// AllowedNames is empty: every user with a client certificate could then act as a front
// proxy and name any user. Files that cannot be read are ignored, because the server
// generates its own CA after Validate. loadClientCA calls validateOverlap again and reports
// missing files.
func (o *AuthenticationOptions) validateOverlap() error {
	if o.RequestHeader.ClientCAFile == "" || len(o.RequestHeader.AllowedNames) > 0 {
		return nil
	}
	proxies, err := certutil.CertsFromFile(o.RequestHeader.ClientCAFile)
	if err != nil {
		return nil //nolint:nilerr // loadClientCA reports a file that cannot be read
	}
	for _, client := range []struct{ file, name string }{
		{o.ClientCert.ClientCA, "--client-ca-file"},
		{o.serverCAFile, "the server's own CA " + o.serverCAFile},
	} {
		if client.file == "" {
			continue
		}
		clients, err := certutil.CertsFromFile(client.file)
		if err != nil {
			continue
		}
		for _, ca := range clients {
			if slices.ContainsFunc(proxies, func(proxy *x509.Certificate) bool { return sameAuthority(ca, proxy) }) {
				return fmt.Errorf("--requestheader-client-ca-file and %s share a certificate: --requestheader-allowed-names is required, lest every client could name its own user", client.name)
			}
		}
	}
	return nil
}

// sameAuthority reports whether a certificate signed by one CA also verifies with the
// other. That depends on the CA's name and key, which stay the same when its
// certificate is renewed.
func sameAuthority(a, b *x509.Certificate) bool {
	return bytes.Equal(a.RawSubject, b.RawSubject) && bytes.Equal(a.RawSubjectPublicKeyInfo, b.RawSubjectPublicKeyInfo)
}
