package builtin

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

// stable matches versions that are served unless they are turned off; alpha and
// beta versions must be turned on.
var stable = regexp.MustCompile(`^v\d+$`)

// DefaultResources returns which versions are served when --runtime-config says
// nothing: the stable ones. It names the others as disabled, so that api/beta
// and api/alpha know what there is.
func DefaultResources() *serverstorage.ResourceConfig {
	config := serverstorage.NewResourceConfig()
	for _, g := range table() {
		for _, version := range g.versions() {
			gv := schema.GroupVersion{Group: g.name, Version: version}
			if stable.MatchString(version) {
				config.EnableVersions(gv)
			} else {
				config.DisableVersions(gv)
			}
		}
	}
	return config
}

// Resources returns which versions and resources are served under a
// --runtime-config. The error names what is wrong with the flag's value. Groups
// that other servers of the chain serve are named by the caller, so that they aren't unknown.
func Resources(runtimeConfig cliflag.ConfigurationMap, others ...string) (*serverstorage.ResourceConfig, error) {
	if len(runtimeConfig) == 1 && runtimeConfig[resourceconfig.APIAll] == "false" {
		return nil, fmt.Errorf("%s=false alone leaves nothing to serve", resourceconfig.APIAll)
	}
	runtimeConfig = namedByGroup(runtimeConfig)
	named, err := resourceconfig.ParseGroupVersions(runtimeConfig)
	if err != nil {
		return nil, err
	}
	var unknown []string
	for _, gv := range named {
		if !legacyscheme.Scheme.IsGroupRegistered(gv.Group) && !slices.Contains(others, gv.Group) {
			unknown = append(unknown, gv.String())
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("unknown API groups %s", strings.Join(unknown, ", "))
	}
	return resourceconfig.MergeAPIResourceConfigs(DefaultResources(), runtimeConfig, legacyscheme.Scheme)
}

// namedByGroup gives the core group's version the form of the others', as
// kube-apiserver does (k8s.io/kubernetes/pkg/controlplane/apiserver/options): its
// users write v1 or api/v1. It leaves out api/legacy, which means nothing any more.
func namedByGroup(runtimeConfig cliflag.ConfigurationMap) cliflag.ConfigurationMap {
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
