package registry_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericendpoints "k8s.io/apiserver/pkg/endpoints"
	endpointsdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/handlers"
	"byre/sqlstore/storetest"
)

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
