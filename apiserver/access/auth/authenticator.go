package auth

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/kube-openapi/pkg/common"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/storage"
)

// buildAuthenticator builds the union of authenticators that the flags configure. Upstream's options
// also start the goroutine that reloads --authentication-config, which ends with ctx.
func (a *Auth) buildAuthenticator(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authentication
	flags, err := a.upstreamOptions(o, cfg.Reader)
	if err != nil {
		return err
	}
	if err := o.checkConfiguration(flags); err != nil {
		return err
	}
	var info genericapiserver.AuthenticationInfo
	sources := storage.WithSecrets(cfg.Informers, storage.Informer[corev1listers.SecretLister]{Of: secretLister{cfg.Reader}})
	err = flags.ApplyTo(ctx, &info, nil, cfg.EgressSelector, &common.Config{}, nil, cfg.Client, sources, cfg.ServerID)
	if err != nil {
		return err
	}
	a.Authenticator, a.APIAudiences, a.RequestHeader = info.Authenticator, a.TokenIssuer.Audiences, info.RequestHeaderConfig
	if a.ClientCA != nil {
		a.Authenticator = union.New(newCachedX509Authenticator(a.ClientCA.VerifyOptions, o.RequestHeader.UsernameHeaders), a.Authenticator)
	}
	return nil
}

// secretLister is the lister for bootstrap tokens. It reads the watch cache only: anyone can send a
// token that names a Secret, and such a request must not cause a database query. An informer would
// keep every Secret decoded, for tokens that are few and seldom used.
type secretLister struct{ *storage.LookupReader }

// List implements corev1listers.SecretLister.
func (l secretLister) List(selector labels.Selector) ([]*v1.Secret, error) {
	return l.LookupReader.Secrets.Lister(metav1.NamespaceAll).List(selector)
}

// Secrets implements corev1listers.SecretLister.
func (l secretLister) Secrets(namespace string) corev1listers.SecretNamespaceLister {
	return l.LookupReader.Secrets.Lister(namespace)
}

// upstreamOptions returns the flags as upstream takes them, with what is read otherwise here: the CAs
// of users, the keys of service accounts, and the objects that tokens name.
func (a *Auth) upstreamOptions(
	o *AuthenticationOptions, reader *storage.LookupReader,
) (*kubeoptions.BuiltInAuthenticationOptions, error) {
	if err := a.loadClientCA(o); err != nil {
		return nil, err
	}
	flags, accounts := o.BuiltInAuthenticationOptions, *o.ServiceAccounts
	flags.ServiceAccounts, accounts.KeyFiles, accounts.ExternalPublicKeysGetter = &accounts, nil, a.TokenIssuer.keys
	accounts.OptionalTokenGetter = func(informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
		return serviceAccountTokenGetter{reader}
	}
	flags.ClientCert = &genericoptions.ClientCertAuthenticationOptions{CAContentProvider: a.ClientCA}
	return &flags, nil
}

// checkConfiguration checks what upstream's options do not, or in words of their own.
func (o *AuthenticationOptions) checkConfiguration(flags *kubeoptions.BuiltInAuthenticationOptions) error {
	checked, anonymous := *flags, *o.Anonymous
	checked.Anonymous, anonymous.FlagsSet = &anonymous, false
	config, err := checked.ToAuthenticationConfig()
	if err != nil {
		return err
	}
	if o.Anonymous.FlagsSet && config.AuthenticationConfig.Anonymous != nil {
		return errors.New("--anonymous-auth and the anonymous section of --authentication-config exclude each other")
	}
	// ToAuthenticationConfig does not compare the issuers with those of service accounts.
	errs := apiservervalidation.ValidateAuthenticationConfiguration(
		authenticationcel.NewDefaultCompiler(), config.AuthenticationConfig, config.ServiceAccountIssuers)
	if err := errs.ToAggregate(); err != nil {
		return fmt.Errorf("invalid configuration: %w", err)
	}
	return nil
}

// loadClientCA reads the CAs of users.
func (a *Auth) loadClientCA(o *AuthenticationOptions) error {
	if err := o.validateOverlap(); err != nil || o.ClientCert.ClientCA == "" {
		return err
	}
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", o.ClientCert.ClientCA)
	if err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	a.ClientCA = ca
	if o.serverCAFile != "" && o.serverCAFile != o.ClientCert.ClientCA {
		serverCA, err := dynamiccertificates.NewDynamicCAContentFromFile("server-ca", o.serverCAFile)
		if err != nil {
			return err
		}
		a.ClientCA = newCachedUnionCA(ca, serverCA)
	}
	return nil
}
