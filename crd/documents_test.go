package crd_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/spec3"

	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

// TestDiscovery_FollowsDefinitions: both discovery documents show a definition after it was
// established, and drop it after its deletion. The server reacts to the change: nothing polls.
func TestDiscovery_FollowsDefinitions(t *testing.T) {
	t.Parallel()
	onDatabases(t, testDiscovery)
}

func testDiscovery(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	var resources *metav1.APIResourceList
	storetest.Eventually(t, "discovery", func() bool {
		var err error
		resources, err = s.discovery.ServerResourcesForGroupVersion("example.com/v1")
		return err == nil
	})
	var names []string
	for _, r := range resources.APIResources {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff([]string{"widgets", "widgets/status", "widgets/scale"}, names); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	widgets := resources.APIResources[0]
	want := metav1.APIResource{
		Name: "widgets", SingularName: "widget", Namespaced: true, Kind: "Widget",
		ShortNames: []string{"wd"}, Categories: []string{"all"},
		Verbs:              metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
		StorageVersionHash: widgets.StorageVersionHash,
	}
	if diff := cmp.Diff(want, widgets); diff != "" || widgets.StorageVersionHash == "" {
		t.Errorf("widgets (-want +got):\n%s", diff)
	}

	aggregated := s.do(t, http.MethodGet, "/apis", "", "Accept",
		"application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io").Body.String()
	if !strings.Contains(aggregated, `"responseKind":{"group":"example.com","version":"v1","kind":"Widget"}`) {
		t.Errorf("aggregated discovery: %s", aggregated)
	}

	if err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), "widgets.example.com",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the end of the group", func() bool {
		groups, err := s.discovery.ServerGroups()
		return err == nil && !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
			return g.Name == "example.com"
		})
	})
}

// TestDiscovery_WaitsForDefinitions: a discovery document that is requested before discovery lists
// the definitions waits for them, and is answered with 503 if the request ends before.
func TestDiscovery_WaitsForDefinitions(t *testing.T) {
	t.Parallel()
	s := newServer(t, dbtest.SQLite(t))
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	crd, err := definitions.Create(t.Context(), parse(t, widgetDefinition), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apihelpers.SetCRDCondition(crd,
		apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.NamesAccepted,
			Status: apiextensionsv1.ConditionTrue})
	apihelpers.SetCRDCondition(crd,
		apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Established,
			Status: apiextensionsv1.ConditionTrue})
	crd.Status.AcceptedNames = crd.Spec.Names
	if _, err := definitions.UpdateStatus(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, path := range []string{"/apis/example.com", "/apis/example.com/v1"} {
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, httptest.NewRequestWithContext(ended, http.MethodGet, path, nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s before: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
	waited := make(chan *httptest.ResponseRecorder)
	go func() { waited <- s.do(t, http.MethodGet, "/apis/example.com/v1", "") }()
	s.run(t)
	if w := <-waited; w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"widgets"`) {
		t.Errorf("after the wait: %d %s", w.Code, w.Body)
	}
	if w := s.do(t, http.MethodGet, "/apis/nothing.example.com/v1", ""); w.Code != http.StatusNotFound {
		t.Errorf("a group that nothing defines: %d %s", w.Code, w.Body)
	}
}

func TestOpenAPI_FollowsDefinitions(t *testing.T) {
	t.Parallel()
	onDatabases(t, testOpenAPI)
}

func testOpenAPI(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	s.define(t, crontabDefinition)
	storetest.Eventually(t, "the index", func() bool { return s.documentOf(t, "apis/example.com/v1beta1") != "" })
	w := do(t, s.openapi, http.MethodGet, s.documentOf(t, "apis/example.com/v1"), "")
	var document spec3.OpenAPI
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatalf("%d %v: %s", w.Code, err, w.Body)
	}
	for _, name := range []string{"com.example.v1.Widget", "com.example.v1.CronTab", "com.example.v1.WidgetList"} {
		if document.Components.Schemas[name] == nil {
			t.Errorf("version 3 has no schema %s", name)
		}
	}
	if document.Paths.Paths["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/scale"] == nil {
		t.Error("version 3 has no path of the scale subresource")
	}
	text := do(t, s.openapi, http.MethodGet, "/openapi/v2", "").Body.String()
	for _, part := range []string{`"com.example.v1.Widget"`, `"com.example.v1beta1.CronTab"`,
		`"/apis/example.com/v1/namespaces/{namespace}/crontabs"`} {
		if !strings.Contains(text, part) {
			t.Errorf("version 2 lacks %s", part)
		}
	}

	// A new definition changes the documents, although nothing polls.
	before := strings.ReplaceAll(s.documentOf(t, "apis/example.com/v1"), "&", `\u0026`)
	s.define(t,
		strings.NewReplacer("widgets", "gadgets", "widget", "gadget", "Widget", "Gadget", "[wd]",
			"[gd]").Replace(widgetDefinition))
	storetest.Eventually(t, "a changed document", func() bool {
		return !strings.Contains(do(t, s.openapi, http.MethodGet, "/openapi/v3", "").Body.String(), before)
	})
	storetest.Eventually(t, "a changed document of version 2", func() bool {
		return strings.Contains(do(t, s.openapi, http.MethodGet, "/openapi/v2", "").Body.String(), `"com.example.v1.Gadget"`)
	})
}

// documentOf returns the URL of a document in the index of version 3, or "".
func (s *server) documentOf(t *testing.T, path string) string {
	t.Helper()
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(do(t, s.openapi, http.MethodGet, "/openapi/v3", "").Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	return index.Paths[path].ServerRelativeURL
}
