package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// AuthorizationOptions are the flags of authorization, with kube-apiserver's names.
type AuthorizationOptions struct {
	kubeoptions.BuiltInAuthorizationOptions

	// legacyFlags says that a flag was given that AuthorizationConfigurationFile excludes.
	legacyFlags bool
}

func newAuthorizationOptions() AuthorizationOptions {
	o := AuthorizationOptions{BuiltInAuthorizationOptions: *kubeoptions.NewBuiltInAuthorizationOptions()}
	o.Modes = []string{modes.ModeNode, modes.ModeRBAC}
	return o
}

// AddFlags adds the authorization flags to fs.
func (o *AuthorizationOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Modes, "authorization-mode", o.Modes,
		"Authorizers in the order they are asked: "+strings.Join(modes.AuthorizationModeChoices, ", ")+".")
	fs.StringVar(&o.PolicyFile, "authorization-policy-file", o.PolicyFile,
		"File of policies, one JSON object a line, for mode ABAC.")
	fs.StringVar(&o.WebhookConfigFile, "authorization-webhook-config-file", o.WebhookConfigFile,
		"Kubeconfig file of the remote service that mode Webhook asks.")
	fs.StringVar(&o.WebhookVersion, "authorization-webhook-version", o.WebhookVersion,
		"Version of authorization.k8s.io SubjectAccessReview to speak with the webhook.")
	fs.DurationVar(&o.WebhookCacheAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", o.WebhookCacheAuthorizedTTL,
		"How long to remember that the webhook allowed something.")
	fs.DurationVar(&o.WebhookCacheUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", o.WebhookCacheUnauthorizedTTL,
		"How long to remember that the webhook didn't allow something.")
	fs.StringVar(&o.AuthorizationConfigurationFile, "authorization-config", o.AuthorizationConfigurationFile,
		"File with an AuthorizationConfiguration: the chain of authorizers. Reloaded when it changes. Excludes --authorization-mode and the --authorization-webhook-* flags.")
	for _, name := range []string{"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-version",
		"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl"} {
		track(fs, name, &o.legacyFlags)
	}
}

// Validate returns one error for each invalid flag.
func (o *AuthorizationOptions) Validate() []error {
	if o.AuthorizationConfigurationFile != "" {
		if o.legacyFlags {
			return []error{errors.New("--authorization-config excludes --authorization-mode and the --authorization-webhook-* flags")}
		}
		if _, err := o.ToAuthorizationConfig(nil); err != nil {
			return []error{fmt.Errorf("--authorization-config %s: %w", o.AuthorizationConfigurationFile, err)}
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
		{modes.ModeWebhook, "authorization-webhook-config-file", o.WebhookConfigFile},
	} {
		if has := slices.Contains(o.Modes, need.mode); has && need.value == "" {
			errs = append(errs, fmt.Errorf("--authorization-mode %s requires --%s", need.mode, need.flag))
		} else if !has && need.value != "" {
			errs = append(errs, fmt.Errorf("--%s requires --authorization-mode %s", need.flag, need.mode))
		}
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
	return slices.ContainsFunc(config.AuthorizationConfiguration.Authorizers, func(c apiserver.AuthorizerConfiguration) bool { return string(c.Type) == mode })
}

// hasMode reports whether --authorization-mode is in effect and names mode.
func (o *AuthorizationOptions) hasMode(mode string) bool {
	return o.AuthorizationConfigurationFile == "" && slices.Contains(o.Modes, mode)
}
