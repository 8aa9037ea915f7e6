package auth

import (
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/features"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

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
