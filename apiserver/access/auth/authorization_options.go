package auth

import (
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
	fs.Lookup("authorization-mode").Usage = "Authorizers in the order they are asked: " + strings.Join(modes.AuthorizationModeChoices, ", ") + "."
	// byre.encodeConfigFile writes the default of a tracked flag as a comment, because a flag that is given excludes --authorization-config.
	for _, name := range []string{"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-version",
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
	return slices.ContainsFunc(config.AuthorizationConfiguration.Authorizers, func(c apiserver.AuthorizerConfiguration) bool { return string(c.Type) == mode })
}

// hasMode reports whether --authorization-mode is in effect and names mode.
func (o *AuthorizationOptions) hasMode(mode string) bool {
	return o.AuthorizationConfigurationFile == "" && slices.Contains(o.Modes, mode)
}
