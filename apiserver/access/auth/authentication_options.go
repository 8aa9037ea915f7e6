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
	fs.StringVar(&o.AuthenticationConfigFile, "authentication-config", o.AuthenticationConfigFile,
		"File with an AuthenticationConfiguration: JWT issuers and anonymous access. Reloaded when it changes. Excludes the --oidc-* flags, and --anonymous-auth if it has an anonymous section.")
	fs.StringSliceVar(&o.APIAudiences, "api-audiences", o.APIAudiences,
		"Names of this API: a service account token must be meant for one of them. Defaults to the values of --service-account-issuer.")
	fs.BoolVar(&o.Anonymous.Allow, "anonymous-auth", o.Anonymous.Allow,
		"Let requests without credentials in as user system:anonymous of group system:unauthenticated; authorization still decides what they may do.")
	track(fs, "anonymous-auth", &o.Anonymous.FlagsSet)
	fs.BoolVar(&o.BootstrapToken.Enable, "enable-bootstrap-token-auth", o.BootstrapToken.Enable,
		"Accept tokens kept in Secrets of type bootstrap.kubernetes.io/token in kube-system.")
	fs.StringVar(&o.ClientCert.ClientCA, "client-ca-file", o.ClientCert.ClientCA,
		"File with CA certificates. A client certificate signed by one of them authenticates its common name as user and its organizations as groups. The server's own CA is trusted besides. Reloaded when it changes.")
	fs.StringVar(&o.TokenFile.TokenFile, "token-auth-file", o.TokenFile.TokenFile,
		"CSV file of static tokens: token,user,uid,\"group1,group2\".")
	fs.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", o.SigningKeyFile,
		"File with the private key that signs service account tokens.")
	fs.StringVar(&o.SigningEndpoint, "service-account-signing-endpoint", o.SigningEndpoint,
		"Path of the Unix socket (or @name of an abstract one) of an external signer of service account tokens. Excludes --service-account-signing-key-file and --service-account-key-file.")
	addOIDCFlags(fs, o.OIDC)
	addFrontProxyFlags(fs, o.RequestHeader)
	addServiceAccountFlags(fs, o.ServiceAccounts)
	addWebhookFlags(fs, o.WebHook)
}

func addOIDCFlags(fs *pflag.FlagSet, o *kubeoptions.OIDCAuthenticationOptions) {
	fs.StringVar(&o.IssuerURL, "oidc-issuer-url", o.IssuerURL,
		"URL of the OpenID Connect issuer whose ID tokens are accepted (https only).")
	fs.StringVar(&o.ClientID, "oidc-client-id", o.ClientID,
		"Client ID that an ID token must be issued for. Required with --oidc-issuer-url.")
	fs.StringVar(&o.CAFile, "oidc-ca-file", o.CAFile,
		"File with the CA certificates of the issuer; the system's roots if not set.")
	fs.StringVar(&o.UsernameClaim, "oidc-username-claim", o.UsernameClaim,
		"Claim that holds the user name.")
	fs.StringVar(&o.UsernamePrefix, "oidc-username-prefix", o.UsernamePrefix,
		"Prefix put before user names; '-' for none. If not set, the issuer URL is put before every claim but 'email'.")
	fs.StringVar(&o.GroupsClaim, "oidc-groups-claim", o.GroupsClaim,
		"Claim that holds the groups, a string or a list of strings.")
	fs.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", o.GroupsPrefix,
		"Prefix put before group names.")
	fs.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", o.SigningAlgs,
		"Accepted signature algorithms: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512.")
	fs.Var(cliflag.NewMapStringStringNoSplit(&o.RequiredClaims), "oidc-required-claim",
		"A key=value that an ID token must carry. May be repeated.")
	for _, name := range []string{"oidc-issuer-url", "oidc-client-id", "oidc-ca-file", "oidc-username-claim", "oidc-username-prefix",
		"oidc-groups-claim", "oidc-groups-prefix", "oidc-signing-algs", "oidc-required-claim"} {
		track(fs, name, &o.FlagsSet)
	}
}

func addFrontProxyFlags(fs *pflag.FlagSet, o *genericoptions.RequestHeaderAuthenticationOptions) {
	fs.StringVar(&o.ClientCAFile, "requestheader-client-ca-file", o.ClientCAFile,
		"File with the CA certificates of front proxies. Only a client with a certificate from it may name users in headers.")
	fs.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", o.AllowedNames,
		"Common names of the front proxies' certificates. Empty: any certificate from --requestheader-client-ca-file.")
	fs.StringSliceVar(&o.UsernameHeaders, "requestheader-username-headers", o.UsernameHeaders,
		"Headers that hold the user name, such as X-Remote-User.")
	fs.StringSliceVar(&o.UIDHeaders, "requestheader-uid-headers", o.UIDHeaders,
		"Headers that hold the user's UID, such as X-Remote-Uid.")
	fs.StringSliceVar(&o.GroupHeaders, "requestheader-group-headers", o.GroupHeaders,
		"Headers that hold the groups, such as X-Remote-Group.")
	fs.StringSliceVar(&o.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", o.ExtraHeaderPrefixes,
		"Prefixes of headers that hold extra attributes, such as X-Remote-Extra-.")
}

func addServiceAccountFlags(fs *pflag.FlagSet, o *kubeoptions.ServiceAccountAuthenticationOptions) {
	fs.StringArrayVar(&o.Issuers, "service-account-issuer", o.Issuers,
		"Issuer of service account tokens, an https URL where discovery documents are to be served. May be repeated: the first issues, all are accepted.")
	fs.StringArrayVar(&o.KeyFiles, "service-account-key-file", o.KeyFiles,
		"File with PEM keys (RSA or ECDSA) that verify service account tokens. May be repeated.")
	fs.StringVar(&o.JWKSURI, "service-account-jwks-uri", o.JWKSURI,
		"URI of the key set named in the discovery document (https), if it is not served at this server's own address.")
	fs.BoolVar(&o.Lookup, "service-account-lookup", o.Lookup,
		"Refuse a token kept in a Secret once the Secret or its service account is gone.")
	fs.DurationVar(&o.MaxExpiration, "service-account-max-token-expiration", o.MaxExpiration,
		"Longest validity of an issued token; a request for more gets this. 0: no limit.")
	fs.BoolVar(&o.ExtendExpiration, "service-account-extend-token-expiration", o.ExtendExpiration,
		"Make tokens that admission injects into Pods valid for a year, for clients that don't reread them. Overrides --service-account-max-token-expiration for these.")
}

func addWebhookFlags(fs *pflag.FlagSet, o *kubeoptions.WebHookAuthenticationOptions) {
	fs.StringVar(&o.ConfigFile, "authentication-token-webhook-config-file", o.ConfigFile,
		"Kubeconfig file of a remote service that is asked about bearer tokens.")
	fs.StringVar(&o.Version, "authentication-token-webhook-version", o.Version,
		"Version of authentication.k8s.io TokenReview to speak with the webhook.")
	fs.DurationVar(&o.CacheTTL, "authentication-token-webhook-cache-ttl", o.CacheTTL,
		"How long to remember the webhook's answers.")
}

// track sets given once the flag is set on the command line.
func track(fs *pflag.FlagSet, name string, given *bool) {
	flag := fs.Lookup(name)
	flag.Value = cliflag.NewTracker(flag.Value, given)
}
