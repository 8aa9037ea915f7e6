package registry

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// stableVersion matches the versions that are served by default. Alpha and beta versions
// are served only if --runtime-config enables them.
var stableVersion = regexp.MustCompile(`^v\d+$`)

// DefaultAPIResourceConfigSource returns the configuration without --runtime-config: all
// stable versions are enabled. Alpha and beta versions are listed as disabled, so that
// the keys api/alpha and api/beta of --runtime-config can enable them.
func DefaultAPIResourceConfigSource() *serverstorage.ResourceConfig {
	config := serverstorage.NewResourceConfig()
	for _, gv := range legacyscheme.Scheme.PrioritizedVersionsAllGroups() {
		if stableVersion.MatchString(gv.Version) {
			config.EnableVersions(gv)
		} else {
			config.DisableVersions(gv)
		}
	}
	return config
}

// ParseRuntimeConfig returns which versions and resources the value of --runtime-config
// enables. otherGroups are the groups that other servers of the delegation chain serve;
// the value may name them too. The error says what is wrong with the value.
func ParseRuntimeConfig(runtimeConfig cliflag.ConfigurationMap, otherGroups ...string) (*serverstorage.ResourceConfig, error) {
	options := genericoptions.APIEnablementOptions{RuntimeConfig: normalizeRuntimeConfig(runtimeConfig)}
	if errs := options.Validate(legacyscheme.Scheme, groups(otherGroups)); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return resourceconfig.MergeAPIResourceConfigs(DefaultAPIResourceConfigSource(), options.RuntimeConfig, legacyscheme.Scheme)
}

// groups implements genericoptions.GroupRegistry.
type groups []string

// IsGroupRegistered implements genericoptions.GroupRegistry.
func (g groups) IsGroupRegistered(group string) bool { return slices.Contains(g, group) }

// normalizeRuntimeConfig converts the keys of the core group, v1 and api/v1, to the form
// group/version with an empty group, as kube-apiserver does
// (k8s.io/kubernetes/pkg/controlplane/apiserver/server). It drops the key api/legacy,
// which kube-apiserver accepts and ignores.
func normalizeRuntimeConfig(runtimeConfig cliflag.ConfigurationMap) cliflag.ConfigurationMap {
	named := make(cliflag.ConfigurationMap, len(runtimeConfig))
	for key, value := range runtimeConfig {
		core := strings.TrimPrefix(key, "api/")
		switch {
		case core == "v1" || strings.HasPrefix(core, "v1/"):
			named["/"+core] = value
		case key != "api/legacy":
			named[key] = value
		}
	}
	return named
}
