package auth

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

// Validate returns one error for each invalid flag.
func (o *AuthenticationOptions) Validate() []error {
	var errs []error
	if o.AuthenticationConfigFile != "" && o.OIDC.FlagsSet {
		errs = append(errs, errors.New("--authentication-config and the --oidc-* flags exclude each other"))
	}
	if o.AuthenticationConfigFile == "" && o.OIDC.FlagsSet && (o.OIDC.IssuerURL == "" || o.OIDC.ClientID == "") {
		errs = append(errs, errors.New("--oidc-issuer-url and --oidc-client-id are both required when any --oidc-* flag is set"))
	}
	errs = append(errs, o.validateServiceAccounts()...)
	errs = append(errs, o.RequestHeader.Validate()...)
	if err := o.validateOverlap(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func (o *AuthenticationOptions) validateServiceAccounts() []error {
	accounts := o.ServiceAccounts
	var errs []error
	if len(accounts.Issuers) == 0 {
		errs = append(errs, errors.New("--service-account-issuer is required"))
	}
	for i, issuer := range accounts.Issuers {
		switch {
		case issuer == "":
			errs = append(errs, errors.New("--service-account-issuer must not be empty"))
		case slices.Contains(accounts.Issuers[:i], issuer):
			errs = append(errs, fmt.Errorf("--service-account-issuer %q is given twice", issuer))
		case strings.Contains(issuer, ":"):
			if _, err := url.Parse(issuer); err != nil {
				errs = append(errs, fmt.Errorf("--service-account-issuer %q has a colon but is not a URL: %w", issuer, err))
			}
		}
	}
	errs = append(errs, o.validateKeys()...)
	if accounts.JWKSURI != "" {
		if u, err := url.Parse(accounts.JWKSURI); err != nil || u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("--service-account-jwks-uri %q is not an https URL", accounts.JWKSURI))
		}
	}
	if accounts.MaxExpiration != 0 && (accounts.MaxExpiration < time.Hour || accounts.MaxExpiration > (1<<32)*time.Second) {
		errs = append(errs, fmt.Errorf("--service-account-max-token-expiration must be between 1 hour and 2^32 seconds, not %v", accounts.MaxExpiration))
	}
	return errs
}

// abstractSocket matches the names of abstract sockets that kube-apiserver accepts.
var abstractSocket = regexp.MustCompile(`^@([a-zA-Z0-9_-]+\.)*[a-zA-Z0-9_-]+$`)

// validateKeys checks that either key files or an external signer are configured.
func (o *AuthenticationOptions) validateKeys() []error {
	var errs []error
	if o.SigningEndpoint != "" {
		if o.SigningKeyFile != "" || len(o.ServiceAccounts.KeyFiles) > 0 {
			errs = append(errs, errors.New("--service-account-signing-endpoint excludes --service-account-signing-key-file and --service-account-key-file"))
		}
		if strings.HasPrefix(o.SigningEndpoint, "@") && !abstractSocket.MatchString(o.SigningEndpoint) {
			errs = append(errs, fmt.Errorf("--service-account-signing-endpoint %q is not the name of an abstract socket", o.SigningEndpoint))
		}
		return errs
	}
	if len(o.ServiceAccounts.KeyFiles) == 0 {
		errs = append(errs, errors.New("--service-account-key-file is required"))
	}
	if o.SigningKeyFile == "" {
		errs = append(errs, errors.New("--service-account-signing-key-file is required"))
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
