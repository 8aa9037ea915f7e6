package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
)

// AuthorizationOptions are the flags of authorization, with kube-apiserver's names.
type AuthorizationOptions struct {
	// ConfigFile, if set, replaces Modes and Webhook.
	ConfigFile string
	Modes      []string
	PolicyFile string
	Webhook    AuthorizationWebhookOptions

	// legacyFlags says that a flag was given that ConfigFile excludes.
	legacyFlags bool
}

// AuthorizationWebhookOptions configure the authorizer of mode Webhook.
type AuthorizationWebhookOptions struct {
	ConfigFile           string
	Version              string
	CacheAuthorizedTTL   time.Duration
	CacheUnauthorizedTTL time.Duration
}

func newAuthorizationOptions() AuthorizationOptions {
	return AuthorizationOptions{
		Modes: []string{modes.ModeNode, modes.ModeRBAC},
		Webhook: AuthorizationWebhookOptions{
			Version:              "v1beta1",
			CacheAuthorizedTTL:   5 * time.Minute,
			CacheUnauthorizedTTL: 30 * time.Second,
		},
	}
}

// AddFlags adds the authorization flags to fs.
func (o *AuthorizationOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Modes, "authorization-mode", o.Modes,
		"Authorizers in the order they are asked: "+strings.Join(modes.AuthorizationModeChoices, ", ")+".")
	fs.StringVar(&o.PolicyFile, "authorization-policy-file", o.PolicyFile,
		"File of policies, one JSON object a line, for mode ABAC.")
	fs.StringVar(&o.Webhook.ConfigFile, "authorization-webhook-config-file", o.Webhook.ConfigFile,
		"Kubeconfig file of the remote service that mode Webhook asks.")
	fs.StringVar(&o.Webhook.Version, "authorization-webhook-version", o.Webhook.Version,
		"Version of authorization.k8s.io SubjectAccessReview to speak with the webhook.")
	fs.DurationVar(&o.Webhook.CacheAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", o.Webhook.CacheAuthorizedTTL,
		"How long to remember that the webhook allowed something.")
	fs.DurationVar(&o.Webhook.CacheUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", o.Webhook.CacheUnauthorizedTTL,
		"How long to remember that the webhook didn't allow something.")
	fs.StringVar(&o.ConfigFile, "authorization-config", o.ConfigFile,
		"File with an AuthorizationConfiguration: the chain of authorizers. Reloaded when it changes. Excludes --authorization-mode and the --authorization-webhook-* flags.")
	for _, name := range []string{"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-version",
		"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl"} {
		track(fs, name, &o.legacyFlags)
	}
}

// Validate returns one error for each invalid flag.
func (o *AuthorizationOptions) Validate() []error {
	if o.ConfigFile != "" {
		if o.legacyFlags {
			return []error{errors.New("--authorization-config excludes --authorization-mode and the --authorization-webhook-* flags")}
		}
		if _, _, err := o.configuration(); err != nil {
			return []error{fmt.Errorf("--authorization-config %s: %w", o.ConfigFile, err)}
		}
		return nil
	}
	var errs []error
	if len(o.Modes) == 0 {
		errs = append(errs, errors.New("--authorization-mode must name at least one authorizer"))
	}
	for i, mode := range o.Modes {
		switch {
		case !modes.IsValidAuthorizationMode(mode):
			errs = append(errs, fmt.Errorf("--authorization-mode: %q is none of %s", mode, strings.Join(modes.AuthorizationModeChoices, ", ")))
		case slices.Contains(o.Modes[:i], mode):
			errs = append(errs, fmt.Errorf("--authorization-mode names %s twice", mode))
		}
	}
	for _, need := range []struct{ mode, flag, value string }{
		{modes.ModeABAC, "authorization-policy-file", o.PolicyFile},
		{modes.ModeWebhook, "authorization-webhook-config-file", o.Webhook.ConfigFile},
	} {
		if has := slices.Contains(o.Modes, need.mode); has && need.value == "" {
			errs = append(errs, fmt.Errorf("--authorization-mode %s requires --%s", need.mode, need.flag))
		} else if !has && need.value != "" {
			errs = append(errs, fmt.Errorf("--%s requires --authorization-mode %s", need.flag, need.mode))
		}
	}
	return errs
}

// UsesMode reports whether the flags or ConfigFile configure an authorizer of the given
// mode. It returns false if the file cannot be read: Validate reports that.
func (o *AuthorizationOptions) UsesMode(mode string) bool {
	config, _, err := o.configuration()
	return err == nil && usesMode(config, mode)
}

func usesMode(config *apiserver.AuthorizationConfiguration, mode string) bool {
	return slices.ContainsFunc(config.Authorizers, func(c apiserver.AuthorizerConfiguration) bool { return string(c.Type) == mode })
}

// hasMode reports whether --authorization-mode is in effect and names mode.
func (o *AuthorizationOptions) hasMode(mode string) bool {
	return o.ConfigFile == "" && slices.Contains(o.Modes, mode)
}

// configuration returns the configuration in ConfigFile and the text of the file, or, without
// one, the configuration that is equivalent to the flags.
func (o *AuthorizationOptions) configuration() (*apiserver.AuthorizationConfiguration, string, error) {
	if o.ConfigFile != "" {
		return authorizer.LoadAndValidateFile(o.ConfigFile, authorizationcel.NewDefaultCompiler(), nil)
	}
	config := &apiserver.AuthorizationConfiguration{}
	for _, mode := range o.Modes {
		entry := apiserver.AuthorizerConfiguration{
			Type: apiserver.AuthorizerType(mode),
			Name: authorizer.GetNameForAuthorizerMode(mode),
		}
		if mode == modes.ModeWebhook {
			entry.Name = "default"
			entry.Webhook = o.Webhook.buildConfiguration()
		}
		config.Authorizers = append(config.Authorizers, entry)
	}
	return config, "", nil
}

func (o *AuthorizationWebhookOptions) buildConfiguration() *apiserver.WebhookConfiguration {
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL:              metav1.Duration{Duration: o.CacheAuthorizedTTL},
		CacheAuthorizedRequests:    o.CacheAuthorizedTTL != 0,
		UnauthorizedTTL:            metav1.Duration{Duration: o.CacheUnauthorizedTTL},
		CacheUnauthorizedRequests:  o.CacheUnauthorizedTTL != 0,
		Timeout:                    metav1.Duration{Duration: 30 * time.Second},
		FailurePolicy:              apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: o.Version,
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type:           apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
			KubeConfigFile: &o.ConfigFile,
		},
	}
}
