package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// tokenCacheTTL is how long a successful verification of a token is cached, as in
// kube-apiserver.
const tokenCacheTTL = 10 * time.Second

// buildAuthenticator converts the flags to upstream's configuration and builds the union
// of authenticators from it.
func (a *Auth) buildAuthenticator(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authentication
	config := kubeauthenticator.Config{
		APIServerID:                    cfg.ServerID,
		APIAudiences:                   a.TokenIssuer.Audiences,
		TokenAuthFile:                  o.TokenFile,
		TokenSuccessCacheTTL:           tokenCacheTTL,
		ServiceAccountLookup:           o.ServiceAccounts.Lookup,
		ServiceAccountIssuers:          o.ServiceAccounts.Issuers,
		ServiceAccountPublicKeysGetter: a.TokenIssuer.keys,
		ServiceAccountTokenGetter:      serviceAccountTokenGetter{cfg.Reader},
		SecretsWriter:                  cfg.Client.CoreV1(),
		WebhookTokenAuthnConfigFile:    o.Webhook.ConfigFile,
		WebhookTokenAuthnVersion:       o.Webhook.Version,
		WebhookTokenAuthnCacheTTL:      o.Webhook.CacheTTL,
		WebhookRetryBackoff:            genericoptions.DefaultAuthWebhookRetryBackoff(),
		BootstrapToken:                 o.BootstrapTokens,
		CustomDial:                     cfg.Dial,
		EgressLookup:                   cfg.EgressLookup,
	}
	if o.BootstrapTokens {
		// The lister reads the watch cache only: anyone can send a token that names a Secret,
		// and such a request must not cause a database query. An informer would keep every
		// Secret of kube-system decoded, for tokens that are few and seldom used.
		config.BootstrapTokenAuthenticator = bootstrap.NewTokenAuthenticator(cfg.Reader.Secrets.Lister(metav1.NamespaceSystem))
	}
	if err := a.loadCAs(o, &config); err != nil {
		return err
	}
	if err := o.configureJWT(&config); err != nil {
		return err
	}
	if err := o.configureAnonymous(&config); err != nil {
		return err
	}
	if err := validateConfiguration(config.AuthenticationConfig, config.ServiceAccountIssuers); err != nil {
		return err
	}

	request, update, _, _, err := config.New(ctx)
	if err != nil {
		return err
	}
	a.Authenticator, a.APIAudiences, a.RequestHeader = request, config.APIAudiences, config.RequestHeaderConfig
	if o.ConfigFile != "" {
		a.reloader = newAuthenticationConfigReloader(o.ConfigFile, cfg.ServerID, &config, update)
	}
	if a.ClientCA != nil {
		a.Authenticator = union.New(newCachedX509Authenticator(a.ClientCA.VerifyOptions, o.RequestHeader.UsernameHeaders), a.Authenticator)
	}
	return nil
}

// loadCAs reads the CAs of users and of front proxies.
func (a *Auth) loadCAs(o *AuthenticationOptions, config *kubeauthenticator.Config) error {
	if err := o.validateOverlap(); err != nil {
		return err
	}
	if o.ClientCAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", o.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		a.ClientCA = ca
		if o.serverCAFile != "" && o.serverCAFile != o.ClientCAFile {
			serverCA, err := dynamiccertificates.NewDynamicCAContentFromFile("server-ca", o.serverCAFile)
			if err != nil {
				return err
			}
			a.ClientCA = newCachedUnionCA(ca, serverCA)
		}
		config.ClientCAContentProvider = a.ClientCA
	}
	if o.RequestHeader.ClientCAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", o.RequestHeader.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
		a.RequestHeaderCA = ca
		config.RequestHeaderConfig = &authenticatorfactory.RequestHeaderConfig{
			CAContentProvider:   ca,
			AllowedClientNames:  headerrequest.StaticStringSlice(o.RequestHeader.AllowedNames),
			UsernameHeaders:     headerrequest.StaticStringSlice(o.RequestHeader.UsernameHeaders),
			UIDHeaders:          headerrequest.StaticStringSlice(o.RequestHeader.UIDHeaders),
			GroupHeaders:        headerrequest.StaticStringSlice(o.RequestHeader.GroupHeaders),
			ExtraHeaderPrefixes: headerrequest.StaticStringSlice(o.RequestHeader.ExtraHeaderPrefixes),
		}
	}
	return nil
}

// configureJWT configures the JWT issuers of ConfigFile, or the one of the --oidc-* flags.
func (o *AuthenticationOptions) configureJWT(config *kubeauthenticator.Config) error {
	if o.ConfigFile != "" {
		data, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			return fmt.Errorf("--authentication-config: %w", err)
		}
		if config.AuthenticationConfig, err = decodeConfiguration(data); err != nil {
			return fmt.Errorf("--authentication-config %s: %w", o.ConfigFile, err)
		}
		config.AuthenticationConfigData = string(data)
		// As in kube-apiserver, the file does not restrict the algorithms.
		config.OIDCSigningAlgs = oidc.AllValidSigningAlgorithms()
		return nil
	}
	config.AuthenticationConfig = &apiserver.AuthenticationConfiguration{}
	if o.OIDC.IssuerURL == "" || o.OIDC.ClientID == "" {
		return nil
	}
	issuer, err := o.OIDC.authenticator()
	if err != nil {
		return err
	}
	config.AuthenticationConfig.JWT = []apiserver.JWTAuthenticator{issuer}
	config.OIDCSigningAlgs = o.OIDC.SigningAlgs
	return nil
}

// authenticator converts the --oidc-* flags to the configuration that is equivalent.
func (o *OIDCOptions) authenticator() (apiserver.JWTAuthenticator, error) {
	prefix := o.UsernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && o.UsernameClaim != "email":
		// kube-apiserver regards only an email address as unique across issuers.
		prefix = o.IssuerURL + "#"
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Prefix: new(prefix), Claim: o.UsernameClaim},
		},
	}
	if o.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Prefix: new(o.GroupsPrefix), Claim: o.GroupsClaim}
	}
	if o.CAFile != "" {
		ca, err := os.ReadFile(o.CAFile)
		if err != nil {
			return jwt, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(ca)
	}
	for claim, value := range o.RequiredClaims {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules,
			apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	return jwt, nil
}

// configureAnonymous takes the anonymous settings from the file or the flag.
func (o *AuthenticationOptions) configureAnonymous(config *kubeauthenticator.Config) error {
	fromFile := config.AuthenticationConfig.Anonymous
	switch {
	case fromFile != nil && o.anonymousFlag:
		return errors.New("--anonymous-auth and the anonymous section of --authentication-config exclude each other")
	case fromFile != nil:
		config.Anonymous = *fromFile
	default:
		config.Anonymous = apiserver.AnonymousAuthConfig{Enabled: o.Anonymous}
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
