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

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/features"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	certutil "k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// Options are the flags of authentication and of authorization.
type Options struct {
	Authentication AuthenticationOptions
	Authorization  AuthorizationOptions
}

// NewOptions returns kube-apiserver's defaults with one exception: the authorization
// modes are Node,RBAC, as kubeadm sets them. kube-apiserver's default, AlwaysAllow,
// would allow every authenticated user everything.
func NewOptions() *Options {
	return &Options{
		Authentication: newAuthenticationOptions(),
		Authorization:  newAuthorizationOptions(),
	}
}

// PKIFiles are the files of the server's own PKI. They are used where no flag names
// another file.
type PKIFiles struct {
	ClientCA           string
	FrontProxyCA       string
	ServiceAccountKey  string // private key, signs tokens
	ServiceAccountPub  string // public key, verifies tokens
	FrontProxyUserName string // common name of the front proxy's client certificate
}

// DefaultIssuer is the issuer of service account tokens in a cluster made by kubeadm.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Complete sets what the flags leave empty: the files of the server's own PKI, and
// settings that depend on other flags. The caller calls it before Validate.
func (o *Options) Complete(files PKIFiles) {
	a := &o.Authentication
	if a.ClientCert.ClientCA == "" {
		a.ClientCert.ClientCA = files.ClientCA
	}
	a.serverCAFile = files.ClientCA
	if a.RequestHeader.ClientCAFile == "" && files.FrontProxyCA != "" {
		completeFrontProxy(a.RequestHeader, files)
	}
	if a.SigningKeyFile == "" && len(a.ServiceAccounts.KeyFiles) == 0 && a.SigningEndpoint == "" {
		a.SigningKeyFile = files.ServiceAccountKey
		if files.ServiceAccountPub != "" {
			a.ServiceAccounts.KeyFiles = []string{files.ServiceAccountPub}
		}
	}
	if len(a.ServiceAccounts.Issuers) == 0 {
		a.ServiceAccounts.Issuers = []string{DefaultIssuer}
	}
	// With AlwaysAllow, anonymous requests would be allowed everything.
	// kube-apiserver turns anonymous authentication off in this case too.
	if a.Anonymous.Allow && o.Authorization.hasMode(modes.ModeAlwaysAllow) {
		klog.Warning("--authorization-mode=AlwaysAllow turns --anonymous-auth off")
		a.Anonymous.Allow = false
	}
}

// Validate returns one error for each invalid flag.
func (o *Options) Validate() []error {
	return append(o.Authentication.Validate(), o.Authorization.Validate()...)
}

// AuthenticationOptions are the flags of authentication, with kube-apiserver's names and
// defaults.
type AuthenticationOptions struct {
	kubeoptions.BuiltInAuthenticationOptions
	// SigningKeyFile has the key that signs service account tokens. SigningEndpoint is the socket of an
	// external signer, which replaces it and ServiceAccounts.KeyFiles.
	SigningKeyFile, SigningEndpoint string

	// serverCAFile is the CA that the server generated or was given in pki/. Client
	// certificates of it are accepted besides those of ClientCert: the
	// administrator's kubeconfig, which the server writes, holds one.
	serverCAFile string
}

func newAuthenticationOptions() AuthenticationOptions {
	return AuthenticationOptions{BuiltInAuthenticationOptions: *kubeoptions.NewBuiltInAuthenticationOptions().WithAll()}
}

// completeFrontProxy sets the front proxy CA that the server generated and, where the flags leave
// them empty, the header names and the allowed name that kubeadm uses.
func completeFrontProxy(o *genericoptions.RequestHeaderAuthenticationOptions, files PKIFiles) {
	o.ClientCAFile = files.FrontProxyCA
	setDefault := func(list *[]string, value string) {
		if len(*list) == 0 && value != "" {
			*list = []string{value}
		}
	}
	setDefault(&o.AllowedNames, files.FrontProxyUserName)
	setDefault(&o.UsernameHeaders, "X-Remote-User")
	if utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID) {
		setDefault(&o.UIDHeaders, "X-Remote-Uid")
	}
	setDefault(&o.GroupHeaders, "X-Remote-Group")
	setDefault(&o.ExtraHeaderPrefixes, "X-Remote-Extra-")
}

// AddFlags adds the authentication flags to fs.
func (o *AuthenticationOptions) AddFlags(fs *pflag.FlagSet) {
	o.BuiltInAuthenticationOptions.AddFlags(fs)
	fs.Lookup("client-ca-file").Usage += " The server's own CA is trusted besides."
	fs.Lookup("service-account-lookup").Usage = "If true, a token of a service account is valid only while the account exists."
	// Upstream's usage names another default.
	fs.Lookup("service-account-key-file").Usage = "File with PEM keys (RSA or ECDSA) that verify service account tokens. May be repeated."
	fs.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", o.SigningKeyFile,
		"File with the private key that signs service account tokens.")
	fs.StringVar(&o.SigningEndpoint, "service-account-signing-endpoint", o.SigningEndpoint,
		"Path of the Unix socket (or @name of an abstract one) of an external signer of service account tokens. Excludes --service-account-signing-key-file and --service-account-key-file.")
}

// track sets given once the flag is set on the command line.
func track(fs *pflag.FlagSet, name string, given *bool) {
	flag := fs.Lookup(name)
	flag.Value = cliflag.NewTracker(flag.Value, given)
}

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
		errs = append(errs,
			errors.New(
				"--service-account-signing-endpoint excludes --service-account-signing-key-file and --service-account-key-file"))
	case strings.HasPrefix(o.SigningEndpoint, "@") && !abstractSocket.MatchString(o.SigningEndpoint):
		errs = append(errs,
			fmt.Errorf("--service-account-signing-endpoint %q is not the name of an abstract socket", o.SigningEndpoint))
	}
	if longest := accounts.MaxExpiration; longest != 0 && (longest < time.Hour || longest > (1<<32)*time.Second) {
		errs = append(errs,
			fmt.Errorf("--service-account-max-token-expiration must be between 1 hour and 2^32 seconds, not %v", longest))
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
				return fmt.Errorf(
					"--requestheader-client-ca-file and %s share a certificate: --requestheader-allowed-names is required, lest every client could name its own user", client.name)
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

// AuthorizationOptions are the flags of authorization, with kube-apiserver's names.
type AuthorizationOptions struct {
	kubeoptions.BuiltInAuthorizationOptions
}

func newAuthorizationOptions() AuthorizationOptions {
	o := AuthorizationOptions{*kubeoptions.NewBuiltInAuthorizationOptions()}
	o.Modes = []string{modes.ModeNode, modes.ModeRBAC}
	return o
}

// AddFlags adds the authorization flags to fs.
func (o *AuthorizationOptions) AddFlags(fs *pflag.FlagSet) {
	o.BuiltInAuthorizationOptions.AddFlags(fs)
	// Upstream's usage names another default.
	fs.Lookup("authorization-mode").Usage = "Authorizers in the order they are asked: " +
		strings.Join(modes.AuthorizationModeChoices, ", ") + "."
	// byre.encodeConfigFile writes the default of a tracked flag as a comment, because a flag that is given excludes
	// --authorization-config.
	for _, name := range []string{"authorization-mode", "authorization-webhook-config-file",
		"authorization-webhook-version",
		"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl"} {
		track(fs, name, new(bool))
	}
}

// Validate returns one error for each invalid flag.
func (o *AuthorizationOptions) Validate() []error {
	errs := o.BuiltInAuthorizationOptions.Validate()
	if o.AuthorizationConfigurationFile != "" && len(errs) > 0 { // upstream's error does not name the flag
		return []error{fmt.Errorf("--authorization-config %s: %w", o.AuthorizationConfigurationFile, errs[0])}
	}
	return errs
}

// UsesMode reports whether the flags or the file configure an authorizer of the given
// mode. It returns false if the file cannot be read: Validate reports that.
func (o *AuthorizationOptions) UsesMode(mode string) bool {
	config, err := o.ToAuthorizationConfig(nil)
	return err == nil && usesMode(config, mode)
}

func usesMode(config *authorizer.Config, mode string) bool {
	return slices.ContainsFunc(config.AuthorizationConfiguration.Authorizers,
		func(c apiserver.AuthorizerConfiguration) bool {
			return string(c.Type) == mode
		})
}

// hasMode reports whether --authorization-mode is in effect and names mode.
func (o *AuthorizationOptions) hasMode(mode string) bool {
	return o.AuthorizationConfigurationFile == "" && slices.Contains(o.Modes, mode)
}
