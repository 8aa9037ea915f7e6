package registry_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/features"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/registry"
	"byre/sqlstore/storetest"
)

var (
	everyVersion   = regexp.MustCompile(`^v`)
	stableVersions = regexp.MustCompile(`^v\d+$`)
)

// TestGroups_ServeEverythingUpstreamServes: with every API on, the groups, versions,
// resources, subresources, kinds, verbs, names and storage versions equal those of the
// release's discovery documents.
func TestGroups_ServeEverythingUpstreamServes(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.CompositePodGroup:               true,
		features.EvictionRequestAPI:              true,
		features.GenericWorkload:                 true,
		features.TopologyAwareWorkloadScheduling: true,
	})
	b := newBuiltin(t, cliflag.ConfigurationMap{"api/all": "true"})
	if diff := cmp.Diff(upstream(t, everyVersion), described(t, b.Groups())); diff != "" {
		t.Errorf("differs from upstream's discovery (-want +got):\n%s", diff)
	}
}

// TestGroups_DefaultToStableVersions: without --runtime-config the stable versions of those
// documents are served.
func TestGroups_DefaultToStableVersions(t *testing.T) {
	t.Parallel()
	b := newBuiltin(t, nil)
	if diff := cmp.Diff(upstream(t, stableVersions), described(t, b.Groups())); diff != "" {
		t.Errorf("differs from upstream's discovery (-want +got):\n%s", diff)
	}
}

// TestResources_AreThoseOfTheRelease: the resources are those that the release's documents list.
func TestResources_AreThoseOfTheRelease(t *testing.T) {
	t.Parallel()
	want := map[schema.GroupResource]bool{}
	for groupVersion, resources := range upstream(t, everyVersion) {
		gv, err := schema.ParseGroupVersion(groupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range resources {
			if slices.Contains(r.Verbs, "list") {
				want[schema.GroupResource{Group: gv.Group, Resource: name}] = true
			}
		}
	}
	got := map[schema.GroupResource]bool{}
	for _, gr := range registry.Resources() {
		got[gr] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs from upstream's discovery (-want +got):\n%s", diff)
	}
}

// TestProviders_AreUpstreams: the providers have the order of those of kube-apiserver. The first
// is that of the core group in both.
func TestProviders_AreUpstreams(t *testing.T) {
	t.Parallel()
	var lists [2][]string
	for i, file := range []string{
		filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "pkg/controlplane/instance.go"),
		"providers.go",
	} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lists[i] = regexp.MustCompile(`\b\w+rest\.\w*StorageProvider\{`).FindAllString(string(source), -1)
	}
	if diff := cmp.Diff(lists[0], lists[1]); diff != "" || len(lists[0]) == 0 {
		t.Errorf("differs from upstream's list of providers (-want +got):\n%s", diff)
	}
}

// TestRuntimeConfig_AddsAndRemovesVersions: each form of the flag adds its group versions
// to the default ones, or removes them.
func TestRuntimeConfig_AddsAndRemovesVersions(t *testing.T) {
	t.Parallel()
	byDefault := groupVersions(t, nil)
	for _, test := range []struct {
		flag      cliflag.ConfigurationMap
		more      []string
		less      []string
		resources map[string]bool
	}{
		{flag: cliflag.ConfigurationMap{"certificates.k8s.io/v1beta1": "true"}, more: []string{"certificates.k8s.io/v1beta1"}},
		{flag: cliflag.ConfigurationMap{"api/v1": "", "api/legacy": "true"}},
		{flag: cliflag.ConfigurationMap{"v1": "true"}},
		{flag: cliflag.ConfigurationMap{"api/v1": "false"}, less: []string{"v1"}},
		{flag: cliflag.ConfigurationMap{"batch/v1": "false"}, less: []string{"batch/v1"}},
		{flag: cliflag.ConfigurationMap{"autoscaling/v1": "false"}, less: []string{"autoscaling/v1"}},
		{flag: cliflag.ConfigurationMap{"api/alpha": "true"}, more: []string{
			"admissionregistration.k8s.io/v1alpha1", "coordination.k8s.io/v1alpha2",
			"internal.apiserver.k8s.io/v1alpha1", "resource.k8s.io/v1alpha3",
		}},
		{flag: cliflag.ConfigurationMap{"resource.k8s.io/v1beta2/deviceclasses": "true"},
			more:      []string{"resource.k8s.io/v1beta2"},
			resources: map[string]bool{"resource.k8s.io/v1beta2/deviceclasses": true, "resource.k8s.io/v1beta2/resourceclaims": false}},
		{flag: cliflag.ConfigurationMap{"apps/v1/deployments": "false"},
			resources: map[string]bool{"apps/v1/deployments": false, "apps/v1/deployments/scale": false, "apps/v1/replicasets": true}},
	} {
		t.Run(cliString(test.flag), func(t *testing.T) {
			got := groupVersions(t, test.flag)
			want := slices.DeleteFunc(append(slices.Clone(byDefault), test.more...), func(gv string) bool {
				return slices.Contains(test.less, gv)
			})
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("group versions (-want +got):\n%s", diff)
			}
			b := newBuiltin(t, test.flag)
			doc := described(t, b.Groups())
			for path, want := range test.resources {
				gv, resource := splitPath(path)
				if _, got := doc[gv][resource]; got != want {
					t.Errorf("%s served: %t, want %t", path, got, want)
				}
			}
		})
	}
}

// TestRuntimeConfig_NamesEachError: the error names each wrong value.
func TestRuntimeConfig_NamesEachError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flag cliflag.ConfigurationMap
		want string
	}{
		"nothing left":                      {cliflag.ConfigurationMap{"api/all": "false"}, "api/all=false"},
		"unknown group":                     {cliflag.ConfigurationMap{"nosuch.k8s.io/v1": "true"}, "unknown api groups nosuch.k8s.io/v1"},
		"unknown version of the core group": {cliflag.ConfigurationMap{"api/v2": "true"}, "api/v2"},
		"unknown version":                   {cliflag.ConfigurationMap{"apps/v7": "true"}, "apps/v7"},
		"no version":                        {cliflag.ConfigurationMap{"apps": "true"}, "invalid key apps"},
		"not a bool":                        {cliflag.ConfigurationMap{"apps/v1": "perhaps"}, "perhaps"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := registry.ParseRuntimeConfig(test.flag)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
	if _, err := registry.ParseRuntimeConfig(cliflag.ConfigurationMap{"apiextensions.k8s.io/v1": "false"}, "apiextensions.k8s.io"); err != nil {
		t.Errorf("another server's group: %v", err)
	}
}

// TestGroups_VersionsAreInOrderOfPriority: the versions of a group are in the scheme's
// order, with priorities in discovery that fall in that order.
func TestGroups_VersionsAreInOrderOfPriority(t *testing.T) {
	t.Parallel()
	b := newBuiltin(t, cliflag.ConfigurationMap{"api/all": "true"})
	priorities := documents.GroupPriorities()
	for _, g := range b.Groups() {
		var last documents.GroupPriority
		for i, version := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: version}
			priority, ok := priorities[gv]
			if !ok {
				t.Errorf("%s has no priority", gv)
			}
			if i > 0 && (priority.Group != last.Group || priority.Version >= last.Version) {
				t.Errorf("%s has priority %v after %v", gv, priority, last)
			}
			last = priority
		}
	}
}

// TestGroups_ServeNothingPastItsRemoval: no kind is served in a version that its lifecycle
// has removed in this release. Upstream's server removes those at its start.
func TestGroups_ServeNothingPastItsRemoval(t *testing.T) {
	t.Parallel()
	type removed interface {
		APILifecycleRemoved() (major, minor int)
	}
	release := compatibility.DefaultBuildEffectiveVersion().BinaryVersion()
	checked := 0
	b := newBuiltin(t, cliflag.ConfigurationMap{"api/all": "true"})
	for _, g := range b.Groups() {
		for version, storages := range g.Storage {
			for path, storage := range storages {
				kind := describe(t, schema.GroupVersion{Group: g.Name, Version: version}, path, storage, storage)
				object, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: g.Name, Version: version, Kind: kind.Kind})
				if err != nil {
					continue // a kind of another group, such as Scale
				}
				if r, ok := object.(removed); ok {
					checked++
					if major, minor := r.APILifecycleRemoved(); !release.LessThan(utilversion.MajorMinor(uint(major), uint(minor))) {
						t.Errorf("%s %s %s was removed in %d.%d", g.Name, version, path, major, minor)
					}
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no kind has a release that removes it")
	}
}

func groupVersions(t *testing.T, flag cliflag.ConfigurationMap) []string {
	t.Helper()
	b := newBuiltin(t, flag)
	var all []string
	for _, g := range b.Groups() {
		for _, version := range g.Versions {
			all = append(all, schema.GroupVersion{Group: g.Name, Version: version}.String())
		}
	}
	slices.Sort(all)
	return all
}

// splitPath cuts "group/version/resource".
func splitPath(path string) (gv, resource string) {
	parts := strings.SplitN(path, "/", 3)
	return parts[0] + "/" + parts[1], parts[2]
}

func cliString(flag cliflag.ConfigurationMap) string {
	var all []string
	for key, value := range flag {
		all = append(all, key+"="+value)
	}
	return strings.Join(all, ",")
}
