package auth

import (
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
)

// Options are the flags of authentication and of authorization.
type Options struct {
	Authentication AuthenticationOptions
	Authorization  AuthorizationOptions
}

// NewOptions returns kube-apiserver's defaults, but for the authorization mode:
// kube-apiserver's own default, AlwaysAllow, would hand a new server to anyone
// with a credential, so here it is kubeadm's Node,RBAC.
func NewOptions() *Options {
	return &Options{
		Authentication: newAuthenticationOptions(),
		Authorization:  newAuthorizationOptions(),
	}
}

// AddFlags adds all flags to fs. A caller that groups its help text by section
// calls AddFlags on the two parts instead.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Authentication.AddFlags(fs)
	o.Authorization.AddFlags(fs)
}

// Files are a server's own keys, used where no flag names others.
type Files struct {
	ClientCA           string
	FrontProxyCA       string
	ServiceAccountKey  string // private: signs
	ServiceAccountPub  string // public: verifies
	FrontProxyUserName string // common name of the front proxy's client certificate
}

// DefaultIssuer is the issuer that kubeadm gives to service account tokens.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Complete fills in what the flags left open: the server's own files, and the
// settings that follow from others. It comes before Validate.
func (o *Options) Complete(files Files) {
	a := &o.Authentication
	if a.ClientCAFile == "" {
		a.ClientCAFile = files.ClientCA
	}
	a.ownCAFile = files.ClientCA
	if a.RequestHeader.ClientCAFile == "" && files.FrontProxyCA != "" {
		a.RequestHeader.complete(files)
	}
	if s := a.ServiceAccounts; s.SigningKeyFile == "" && len(s.KeyFiles) == 0 && s.SigningEndpoint == "" {
		a.ServiceAccounts.SigningKeyFile = files.ServiceAccountKey
		if files.ServiceAccountPub != "" {
			a.ServiceAccounts.KeyFiles = []string{files.ServiceAccountPub}
		}
	}
	if len(a.ServiceAccounts.Issuers) == 0 {
		a.ServiceAccounts.Issuers = []string{DefaultIssuer}
	}
	// With AlwaysAllow, an anonymous request would be allowed anything.
	if a.Anonymous && o.Authorization.has(modes.ModeAlwaysAllow) {
		klog.Warning("--authorization-mode=AlwaysAllow turns --anonymous-auth off")
		a.Anonymous = false
	}
}

// Validate returns one error for each wrong flag.
func (o *Options) Validate() []error {
	errs := append(o.Authentication.Validate(), o.Authorization.Validate()...)
	return errs
}
