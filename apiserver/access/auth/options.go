package auth

import (
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
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
