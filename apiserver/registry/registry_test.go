package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericendpoints "k8s.io/apiserver/pkg/endpoints"
	endpointsdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// newGetter returns the options getter over a store and its feed.
func newGetter(store *sqlstore.Store, feed *watch.Feed) *storage.RESTOptionsGetter {
	return storage.NewRESTOptionsGetter(storage.Backend{Store: store, Feed: feed},
		storage.BuiltinResources(compatibility.DefaultBuildEffectiveVersion()))
}

// newBuiltin constructs the groups that a --runtime-config turns on, over a store that does
// not run: the constructor must not read from it.
func newBuiltin(t *testing.T, runtimeConfig cliflag.ConfigurationMap) *registry.Builtin {
	t.Helper()
	b, err := emulate(t, runtimeConfig, thisRelease())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// thisRelease emulates no other.
func thisRelease() emulation {
	return emulation{CurrentVersion: compatibility.DefaultBuildEffectiveVersion().EmulationVersion()}
}

// emulate is newBuiltin with an emulated release.
func emulate(t *testing.T, runtimeConfig cliflag.ConfigurationMap, release emulation) (*registry.Builtin, error) {
	t.Helper()
	resources, err := registry.ParseRuntimeConfig(runtimeConfig)
	if err != nil {
		t.Fatal(err)
	}
	model := storetest.NewModel()
	client := fake.NewClientset()
	return registry.New(registry.Config{
		RESTOptions:             newGetter(sqlstore.New(model, sqlstore.Options{}), watch.New(model, watch.Options{})),
		APIResourceConfigSource: resources,
		Emulation:               release,
		Client:                  client,
		Informers:               informers.NewSharedInformerFactory(client, 0),
		Authorizer:              authorizerfactory.NewAlwaysAllowAuthorizer(),
		Tokens:                  registry.TokenConfig{Issuer: newIssuer(t)},
		Services:                registry.ServiceConfig{ClusterIPRange: clusterIPs, NodePortRange: nodePorts},
		Kubelet:                 registry.DefaultKubelet(),
	})
}

func newIssuer(t *testing.T) serviceaccount.TokenGenerator {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := serviceaccount.JWTTokenGenerator("https://test.invalid", key)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

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
		{flag: cliflag.ConfigurationMap{"certificates.k8s.io/v1beta1": "true"},
			more: []string{"certificates.k8s.io/v1beta1"}},
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
			more: []string{"resource.k8s.io/v1beta2"},
			resources: map[string]bool{"resource.k8s.io/v1beta2/deviceclasses": true,
				"resource.k8s.io/v1beta2/resourceclaims": false}},
		{flag: cliflag.ConfigurationMap{"apps/v1/deployments": "false"},
			resources: map[string]bool{"apps/v1/deployments": false, "apps/v1/deployments/scale": false,
				"apps/v1/replicasets": true}},
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
		"nothing left": {cliflag.ConfigurationMap{"api/all": "false"}, "api/all=false"},
		"unknown group": {cliflag.ConfigurationMap{"nosuch.k8s.io/v1": "true"},
			"unknown api groups nosuch.k8s.io/v1"},
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
	if _, err := registry.ParseRuntimeConfig(cliflag.ConfigurationMap{"apiextensions.k8s.io/v1": "false"},
		"apiextensions.k8s.io"); err != nil {
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

type emulation = genericapiserver.ResourceExpirationEvaluatorOptions

// TestGroups_EmulatedReleaseHidesLaterAPIs: an API that a later release introduced is
// served only if a flag turns it on. (mutatingadmissionpolicies became v1 in 1.36.)
func TestGroups_EmulatedReleaseHidesLaterAPIs(t *testing.T) {
	t.Parallel()
	const policies = "mutatingadmissionpolicies"
	beta := cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1beta1": "true"}
	tests := map[string]struct {
		config    cliflag.ConfigurationMap
		emulation emulation
		want      string // the served versions of policies, or the error
	}{
		"this release":            {nil, emulation{CurrentVersion: utilversion.MajorMinor(1, 36)}, "v1"},
		"the last":                {nil, emulation{CurrentVersion: utilversion.MajorMinor(1, 35)}, ""},
		"the last, with the beta": {beta, emulation{CurrentVersion: utilversion.MajorMinor(1, 35)}, "v1beta1"},
		"the last, forward compatible": {beta,
			emulation{CurrentVersion: utilversion.MajorMinor(1, 35), EmulationForwardCompatible: true}, "v1 v1beta1"},
		"nothing to be compatible with": {nil,
			emulation{CurrentVersion: utilversion.MajorMinor(1, 35), EmulationForwardCompatible: true}, ""},
		"named, and not to be had": {cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1/" + policies: "true"},
			emulation{CurrentVersion: utilversion.MajorMinor(1, 35)}, "introduced at 1.36 after the current version 1.35"},
		"named, and to be served anyhow": {cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1/" + policies: "true"},
			emulation{CurrentVersion: utilversion.MajorMinor(1, 35), RuntimeConfigEmulationForwardCompatible: true}, "v1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := emulate(t, test.config, test.emulation)
			if err != nil {
				if test.want == "" || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error is %v, want %q", err, test.want)
				}
				return
			}
			defer b.Close()
			var found []string
			for _, g := range b.Groups() {
				for _, v := range g.Versions {
					if g.Storage[v][policies] != nil {
						found = append(found, v)
					}
				}
			}
			if got := strings.Join(found, " "); got != test.want {
				t.Errorf("served in %q, want %q", got, test.want)
			}
		})
	}
}

// TestGroups_ARemovedAPIIsThereForAnEarlierRelease: an API that this release has removed can be
// turned on only while an earlier release is emulated. (servicecidrs lost v1beta1 in 1.37.)
func TestGroups_ARemovedAPIIsThereForAnEarlierRelease(t *testing.T) {
	t.Parallel()
	beta := cliflag.ConfigurationMap{"networking.k8s.io/v1beta1": "true"}
	for _, test := range []struct {
		minor uint
		want  bool
	}{{36, true}, {37, false}} {
		b, err := emulate(t, beta, emulation{CurrentVersion: utilversion.MajorMinor(1, test.minor)})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, g := range b.Groups() {
			if got := len(g.Storage["v1beta1"]) > 0; g.Name == "networking.k8s.io" && got != test.want {
				t.Errorf("1.%d serves networking.k8s.io/v1beta1: %t, want %t", test.minor, got, test.want)
			}
		}
	}
}

// TestGroups_ARemovedAPIIsServedForOneReleaseMore: kube-apiserver's variable serves what this
// release has removed.
func TestGroups_ARemovedAPIIsServedForOneReleaseMore(t *testing.T) {
	t.Setenv("KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE", "true")
	b, err := emulate(t, cliflag.ConfigurationMap{"networking.k8s.io/v1beta1": "true"},
		emulation{CurrentVersion: utilversion.MajorMinor(1, 37)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, g := range b.Groups() {
		if g.Name == "networking.k8s.io" && len(g.Storage["v1beta1"]) == 0 {
			t.Error("networking.k8s.io/v1beta1 is not served")
		}
	}
}

// delegatedGroups are served by the other servers of the delegation chain.
var delegatedGroups = []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}

// document is the content of discovery, by group version and resource.
type document map[string]map[string]metav1.APIResource

// upstream reads the release's own discovery documents of the versions that
// match. They are made with --runtime-config=api/all=true and every feature gate
// on (hack/update-openapi-spec.sh).
func upstream(t *testing.T, versions *regexp.Regexp) document {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "api/discovery/api*__v*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("find its discovery documents: %d found, %v", len(files), err)
	}
	doc := document{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list metav1.APIResourceList
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		if !versions.MatchString(gv.Version) || slices.Contains(delegatedGroups, gv.Group) {
			continue
		}
		doc[list.GroupVersion] = map[string]metav1.APIResource{}
		for _, r := range list.APIResources {
			doc[list.GroupVersion][r.Name] = r
		}
	}
	return doc
}

// described returns the discovery entries of the groups, derived from the interfaces of
// their storages as upstream's installer derives them.
func described(t *testing.T, groups []handlers.Group) document {
	t.Helper()
	doc := document{}
	for _, g := range groups {
		for _, version := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: version}
			doc[gv.String()] = map[string]metav1.APIResource{}
			for path, storage := range g.Storage[version] {
				parent, _, _ := strings.Cut(path, "/")
				doc[gv.String()][path] = describe(t, gv, path, storage, g.Storage[version][parent])
			}
		}
	}
	return doc
}

func describe(t *testing.T, gv schema.GroupVersion, path string, storage, parent rest.Storage) metav1.APIResource {
	t.Helper()
	kind, err := genericendpoints.GetResourceKind(gv, storage, legacyscheme.Scheme)
	if err != nil {
		t.Fatalf("kind of %s %s: %v", gv, path, err)
	}
	r := metav1.APIResource{Name: path, Kind: kind.Kind, Verbs: verbs(storage)}
	if kind.Group != gv.Group || kind.Version != gv.Version {
		r.Group, r.Version = kind.Group, kind.Version
	}
	if scoper, ok := parent.(rest.Scoper); ok {
		r.Namespaced = scoper.NamespaceScoped()
	}
	if named, ok := storage.(rest.SingularNameProvider); ok && storage == parent {
		r.SingularName = named.GetSingularName()
	}
	if short, ok := storage.(rest.ShortNamesProvider); ok {
		r.ShortNames = short.ShortNames()
	}
	if categorized, ok := storage.(rest.CategoriesProvider); ok {
		r.Categories = categorized.Categories()
	}
	if versioned, ok := storage.(rest.StorageVersionProvider); ok && versioned.StorageVersion() != nil {
		kinds, _, err := legacyscheme.Scheme.ObjectKinds(storage.New())
		if err != nil {
			t.Fatal(err)
		}
		stored, ok := versioned.StorageVersion().KindForGroupVersionKinds(kinds)
		if !ok {
			t.Fatalf("%s %s is stored in no version", gv, path)
		}
		r.StorageVersionHash = endpointsdiscovery.StorageVersionHash(stored.Group, stored.Version, stored.Kind)
	}
	return r
}

// verbs returns the verbs that upstream's installer (pkg/endpoints/installer.go) derives
// from a storage.
func verbs(storage rest.Storage) metav1.Verbs {
	has := map[string]bool{}
	_, has["get"] = storage.(rest.Getter)
	if _, ok := storage.(rest.GetterWithOptions); ok {
		has["get"] = true
	}
	_, has["list"] = storage.(rest.Lister)
	_, has["watch"] = storage.(rest.Watcher)
	_, has["create"] = storage.(rest.Creater)
	if _, ok := storage.(rest.NamedCreater); ok {
		has["create"] = true
	}
	_, has["update"] = storage.(rest.Updater)
	_, has["patch"] = storage.(rest.Patcher)
	_, has["delete"] = storage.(rest.GracefulDeleter)
	_, has["deletecollection"] = storage.(rest.CollectionDeleter)
	if connecter, ok := storage.(rest.Connecter); ok {
		methods := map[string]string{
			http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
			http.MethodPatch: "patch", http.MethodDelete: "delete",
		}
		for _, method := range connecter.ConnectMethods() {
			if verb, ok := methods[method]; ok {
				has[verb] = true
			}
		}
	}
	var all metav1.Verbs
	for verb, yes := range has {
		if yes {
			all = append(all, verb)
		}
	}
	slices.Sort(all)
	return all
}

// TestImports_LeaveOutUpstreamsServers: the storages do without upstream's control plane, and
// without its provider of the core group, whose allocators connect to etcd.
func TestImports_LeaveOutUpstreamsServers(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, pkg := range []string{
		"k8s.io/kubernetes/pkg/controlplane",
		"k8s.io/kubernetes/pkg/controlplane/apiserver",
		"k8s.io/kubernetes/pkg/registry/core/rest",
		"k8s.io/kubernetes/pkg/registry/core/service/allocator/storage",
	} {
		if slices.Contains(deps, pkg) {
			t.Errorf("%s is imported", pkg)
		}
	}
}
