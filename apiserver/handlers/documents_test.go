package handlers_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/handlers/documents"
	"byre/sqlstore/storetest"
)

// elsewhere are the groups that other servers of the delegation chain serve.
var elsewhere = []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}

const aggregatedJSON = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// TestDiscovery_DocumentsAreTheReleases: every discovery document equals the release's,
// except for the groups that other servers of the chain serve.
func TestDiscovery_DocumentsAreTheReleases(t *testing.T) {
	api := newEverything(t)
	files, err := filepath.Glob(filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "api/discovery/*.json"))
	if err != nil || len(files) < 50 {
		t.Fatalf("%d documents found: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if slices.ContainsFunc(elsewhere, func(group string) bool { return strings.Contains(name, group) }) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			path, accept := "/"+strings.ReplaceAll(name, "__", "/"), "application/json"
			if name == "aggregated_v2" {
				path, accept = "/apis", aggregatedJSON
			}
			want := without(readJSON(t, file))
			if got := without(getJSON(t, api, path, accept)); !cmp.Equal(want, got) {
				t.Errorf("differs (-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

func readJSON(t *testing.T, file string) any {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(raw, &document); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return document
}

func getJSON(t *testing.T, h http.Handler, path, accept string) any {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	var document any
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return document
}

// without removes the groups that are served elsewhere from a list of groups.
func without(document any) any {
	for _, field := range []string{"groups", "items"} {
		list, ok := document.(map[string]any)[field].([]any)
		if !ok {
			continue
		}
		document.(map[string]any)[field] = slices.DeleteFunc(list, func(item any) bool {
			name, _ := item.(map[string]any)["name"].(string)
			if metadata, ok := item.(map[string]any)["metadata"].(map[string]any); ok {
				name, _ = metadata["name"].(string)
			}
			return slices.Contains(elsewhere, name)
		})
	}
	return document
}

// TestOpenAPIV2_IsTheReleases: paths, operations, parameters and definitions equal those of
// the release's swagger.json.
func TestOpenAPIV2_IsTheReleases(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	source := openAPISource(t)
	var text []byte
	if err := source.V2(context.Background(), func(document []byte) error { text = document; return nil }); err != nil {
		t.Fatal(err)
	}
	want := readJSON(t,
		filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "api/openapi-spec/swagger.json")).(map[string]any)
	compareDocuments(t, want, parse(t, text), "paths", "definitions", "parameters")
}

// TestOpenAPIV3_IsTheReleases: each document of version 3 equals the release's.
func TestOpenAPIV3_IsTheReleases(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	source := openAPISource(t)
	files, err := filepath.Glob(filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "api/openapi-spec/v3/*.json"))
	if err != nil || len(files) < 50 {
		t.Fatalf("%d documents found: %v", len(files), err)
	}
	served := slices.Sorted(maps.Keys(source.V3))
	for _, file := range files {
		path := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), "_openapi.json"), "__", "/")
		if notHere(path) {
			continue
		}
		served = slices.DeleteFunc(served, func(p string) bool { return p == path })
		t.Run(path, func(t *testing.T) {
			text, err := source.V3[path].JSON(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			want := readJSON(t, file).(map[string]any)
			got := parse(t, text)
			compareDocuments(t, want, got, "paths", "components")
		})
	}
	if len(served) > 0 {
		t.Errorf("documents that the release has not: %v", served)
	}
}

func openAPISource(t *testing.T) documents.Source {
	t.Helper()
	api := newEverything(t)
	roots := append(api.Roots(), documents.VersionRoot())
	roots = append(roots, documents.TokenIssuerRoots()...)
	return documents.NewModels("unversioned", generated.GetOpenAPIDefinitions, legacyscheme.Scheme).Source(roots, "test")
}

func parse(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// compareDocuments compares the maps at the given keys entry by entry, so that each
// difference is reported by itself, and everything else as a whole.
func compareDocuments(t *testing.T, want, got map[string]any, keys ...string) {
	t.Helper()
	for _, key := range keys {
		compareEntries(t, key, asMap(want[key]), asMap(got[key]))
		delete(want, key)
		delete(got, key)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rest (-want +got):\n%s", diff)
	}
}

func compareEntries(t *testing.T, key string, want, got map[string]any) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		have, ok := got[name]
		switch {
		case !ok && !notHere(name):
			t.Errorf("%s: %s is missing", key, name)
		case ok && !cmp.Equal(want[name], have):
			t.Errorf("%s: %s differs (-want +got):\n%s", key, name, cmp.Diff(want[name], have))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s is not upstream's", key, name)
		}
	}
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// notHere reports whether an entry is missing on purpose.
func notHere(name string) bool {
	return name == "logs" || slices.ContainsFunc([]string{
		// Served by crd and aggregator, which describe their own groups.
		"apiextensions.k8s.io", ".apiextensions.v1.",
		"apiregistration.k8s.io", ".apiregistration.v1.",
		// The host's log files: kube-apiserver serves them for kubelets' sake, and
		// has deprecated that (--enable-logs-handler).
		"/logs/", "logpath-",
	}, func(part string) bool { return strings.Contains(name, part) })
}
