package handlers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
