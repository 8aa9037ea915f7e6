package registry

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
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
	for _, g := range apiGroups() {
		for _, version := range g.versions() {
			gv := schema.GroupVersion{Group: g.name, Version: version}
			if stableVersion.MatchString(version) {
				config.EnableVersions(gv)
			} else {
				config.DisableVersions(gv)
			}
		}
	}
	return config
}

// ParseRuntimeConfig returns which versions and resources the value of --runtime-config
// enables. otherGroups are the groups that other servers of the delegation chain serve;
// the value may name them too. The error says what is wrong with the value.
func ParseRuntimeConfig(runtimeConfig cliflag.ConfigurationMap, otherGroups ...string) (*serverstorage.ResourceConfig, error) {
	if len(runtimeConfig) == 1 && runtimeConfig[resourceconfig.APIAll] == "false" {
		return nil, fmt.Errorf("%s=false alone leaves nothing to serve", resourceconfig.APIAll)
	}
	runtimeConfig = normalizeRuntimeConfig(runtimeConfig)
	named, err := resourceconfig.ParseGroupVersions(runtimeConfig)
	if err != nil {
		return nil, err
	}
	var unknown []string
	for _, gv := range named {
		if !legacyscheme.Scheme.IsGroupRegistered(gv.Group) && !slices.Contains(otherGroups, gv.Group) {
			unknown = append(unknown, gv.String())
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("unknown API groups %s", strings.Join(unknown, ", "))
	}
	return resourceconfig.MergeAPIResourceConfigs(DefaultAPIResourceConfigSource(), runtimeConfig, legacyscheme.Scheme)
}

// normalizeRuntimeConfig converts the keys of the core group, v1 and api/v1, to the form
// group/version with an empty group, as kube-apiserver does
// (k8s.io/kubernetes/pkg/controlplane/apiserver/options). It drops the key api/legacy,
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
