package auth

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// buildAuthenticator builds the union of authenticators that the flags configure.
func (a *Auth) buildAuthenticator(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authentication
	config, err := a.configOf(o)
	if err != nil {
		return err
	}
	config.APIServerID, config.APIAudiences = cfg.ServerID, a.TokenIssuer.Audiences
	config.ServiceAccountPublicKeysGetter = a.TokenIssuer.keys
	config.ServiceAccountTokenGetter = serviceAccountTokenGetter{cfg.Reader}
	config.SecretsWriter = cfg.Client.CoreV1()
	config.CustomDial, config.EgressLookup = cfg.Dial, cfg.EgressLookup
	if config.BootstrapToken {
		// The lister reads the watch cache only: anyone can send a token that names a Secret,
		// and such a request must not cause a database query. An informer would keep every
		// Secret of kube-system decoded, for tokens that are few and seldom used.
		config.BootstrapTokenAuthenticator = bootstrap.NewTokenAuthenticator(cfg.Reader.Secrets.Lister(metav1.NamespaceSystem))
	}

	request, update, _, _, err := config.New(ctx)
	if err != nil {
		return err
	}
	a.Authenticator, a.APIAudiences, a.RequestHeader = request, config.APIAudiences, config.RequestHeaderConfig
	if o.AuthenticationConfigFile != "" {
		a.reloader = newAuthenticationConfigReloader(o.AuthenticationConfigFile, cfg.ServerID, &config, update)
	}
	if a.ClientCA != nil {
		a.Authenticator = union.New(newCachedX509Authenticator(a.ClientCA.VerifyOptions, o.RequestHeader.UsernameHeaders), a.Authenticator)
	}
	return nil
}

// configOf converts the flags to upstream's configuration, and reads the files that they name.
func (a *Auth) configOf(o *AuthenticationOptions) (kubeauthenticator.Config, error) {
	if err := a.loadClientCA(o); err != nil {
		return kubeauthenticator.Config{}, err
	}
	flags, accounts, anonymous := o.BuiltInAuthenticationOptions, *o.ServiceAccounts, *o.Anonymous
	flags.ServiceAccounts, flags.Anonymous = &accounts, &anonymous
	flags.ClientCert = &genericoptions.ClientCertAuthenticationOptions{CAContentProvider: a.ClientCA}
	accounts.KeyFiles = nil    // TokenIssuer has their keys
	anonymous.FlagsSet = false // see below
	config, err := flags.ToAuthenticationConfig()
	if err != nil {
		return config, err
	}
	if o.Anonymous.FlagsSet && config.AuthenticationConfig.Anonymous != nil {
		return config, errors.New("--anonymous-auth and the anonymous section of --authentication-config exclude each other")
	}
	// ToAuthenticationConfig does not compare the issuers with those of service accounts.
	return config, validateConfiguration(config.AuthenticationConfig, config.ServiceAccountIssuers)
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

func validateConfiguration(config *apiserver.AuthenticationConfiguration, issuers []string) error {
	errs := apiservervalidation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), config, issuers)
	if err := errs.ToAggregate(); err != nil {
		return fmt.Errorf("invalid configuration: %w", err)
	}
	return nil
}
