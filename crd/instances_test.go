package crd_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// spec returns the spec of the object in an answer.
func spec(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var u unstructured.Unstructured
	if err := json.Unmarshal(body, &u.Object); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	spec, _ := u.Object["spec"].(map[string]any)
	return spec
}

func TestInstance_IsPrunedAndDefaulted(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, widgetDefinition)
		w := s.do(t, http.MethodPost, widgetPath, widget(t, "a", `{
			"size": 3, "unknown": 1, "note": null, "port": "http",
			"free": {"anything": {"goes": true}},
			"parts": [{"name": "x", "weight": 1, "unknown": 2}],
			"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "unknown": 1}, "spec": {"any": 1}}}`))
		if w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		want := map[string]any{
			"size": 3.0, "replicas": 1.0, "color": "red", "note": nil, "port": "http",
			"free":     map[string]any{"anything": map[string]any{"goes": true}},
			"parts":    []any{map[string]any{"name": "x", "weight": 1.0}},
			"template": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p"}, "spec": map[string]any{"any": 1.0}},
		}
		if diff := cmp.Diff(want, spec(t, w.Body.Bytes())); diff != "" {
			t.Errorf("create answers (-want +got):\n%s", diff)
		}
		// The first is answered from the stored bytes, the second is decoded and indented.
		for _, path := range []string{widgetPath + "/a", widgetPath + "/a?pretty=true"} {
			if diff := cmp.Diff(want, spec(t, s.do(t, http.MethodGet, path, "").Body.Bytes())); diff != "" {
				t.Errorf("GET %s (-want +got):\n%s", path, diff)
			}
		}
	})
}

// TestInstance_ReadFollowsTheSchema changes what the schema prunes and defaults: every read
// of an older object follows the current schema, from stored bytes and decoded.
func TestInstance_ReadFollowsTheSchema(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, widgetDefinition)
		s.create(t, widget(t, "a", `{"size": 3, "note": "x"}`))
		s.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
			delete(properties, "note")
			flavor := properties["color"]
			flavor.Enum, flavor.Default = nil, &apiextensionsv1.JSON{Raw: []byte(`"plain"`)}
			properties["flavor"] = flavor
		})
		want := map[string]any{"size": 3.0, "replicas": 1.0, "color": "red", "flavor": "plain"}
		for _, path := range []string{widgetPath + "/a", widgetPath + "/a?pretty=true"} {
			if diff := cmp.Diff(want, spec(t, s.do(t, http.MethodGet, path, "").Body.Bytes())); diff != "" {
				t.Errorf("GET %s (-want +got):\n%s", path, diff)
			}
		}
		list, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(list.Items[0].Object, "spec", "flavor"); got != "plain" {
			t.Errorf("listed with flavor %q", got)
		}
	})
}

func TestInstance_InvalidIsRefused(t *testing.T) {
	t.Parallel()
	onDatabases(t, testInvalidInstancesAreRefused)
}

func testInvalidInstancesAreRefused(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	s.create(t, widget(t, "big", `{"size": 8}`))
	for _, test := range []struct {
		name, method, path, body string
		code                     int
		message                  string
	}{
		{"missing", http.MethodPost, widgetPath, widget(t, "x", `{}`), 422, "spec.size: Required value"},
		{"range", http.MethodPost, widgetPath, widget(t, "x", `{"size": 11}`), 422, "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"},
		{"type", http.MethodPost, widgetPath, widget(t, "x", `{"size": "3"}`), 422, `spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"`},
		{"enum", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "color": "pink"}`), 422, `Unsupported value: "pink": supported values: "red", "green", "blue"`},
		{"set", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "tags": ["a", "a"]}`), 422, `spec.tags[1]: Duplicate value: "a"`},
		{"map", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "parts": [{"name": "a"}, {"name": "a"}]}`), 422, `Duplicate value`},
		{"rule", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "replicas": 4}`), 422, "more replicas than size"},
		{"transition rule", http.MethodPut, widgetPath + "/big", "", 422, "spec.size: Invalid value: a big size may not shrink"},
		{"kind", http.MethodPost, widgetPath, `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"x"}}`, 422, `kind: Invalid value: "Gadget": must be Widget`},
		{"name", http.MethodPost, widgetPath, widget(t, "No Name", `{"size": 3}`), 422, "metadata.name"},
		{"metadata", http.MethodPost, widgetPath, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x","labels":{"a":1}},"spec":{"size":1}}`, 400, ""},
		{"strict", http.MethodPost, widgetPath + "?fieldValidation=Strict", widget(t, "x", `{"size": 3, "unknown": 1, "size": 4}`), 400, `strict decoding error`},
		{"subresource", http.MethodGet, widgetPath + "/big/log", "", 404, ""},
		{"version", http.MethodGet, "/apis/example.com/v2/widgets", "", 404, ""},
		{"scope", http.MethodPost, "/apis/example.com/v1/widgets", widget(t, "x", `{"size": 3}`), 404, ""},
		{"media", http.MethodPatch, widgetPath + "/big", `{}`, 415, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			body := test.body
			var header []string
			switch {
			case test.method == http.MethodPut:
				current := object(t, s.do(t, http.MethodGet, test.path, "").Body.String())
				if err := unstructured.SetNestedField(current.Object, int64(7), "spec", "size"); err != nil {
					t.Fatal(err)
				}
				data, err := current.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				body = string(data)
			case test.method == http.MethodPatch:
				header = []string{"Content-Type", string(types.StrategicMergePatchType)}
			}
			w := s.do(t, test.method, test.path, body, header...)
			var status metav1.Status
			_ = json.Unmarshal(w.Body.Bytes(), &status) // a 404 of the delegation target is no Status
			if w.Code != test.code || !strings.Contains(status.Message, test.message) {
				t.Errorf("%d %s\nwant %d %s", w.Code, w.Body, test.code, test.message)
			}
		})
	}
}

func TestInstance_Tables(t *testing.T) {
	t.Parallel()
	onDatabases(t, testTables)
}

func testTables(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	s.create(t, widget(t, "a", `{"size": 3}`))
	w := s.do(t, http.MethodGet, widgetPath, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var table metav1.Table
	if err := json.Unmarshal(w.Body.Bytes(), &table); err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, column := range table.ColumnDefinitions {
		columns = append(columns, column.Name)
	}
	if diff := cmp.Diff([]string{"Name", "Size", "Replicas"}, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	if diff := cmp.Diff([]any{"a", 3.0, 1.0}, table.Rows[0].Cells); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
}

func TestInstance_StatusAndScale(t *testing.T) {
	t.Parallel()
	onDatabases(t, testStatusAndScale)
}

func testStatusAndScale(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	created := s.create(t, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":5},"status":{"phase":"made up"}}`)
	if _, ok := created.Object["status"]; ok {
		t.Error("a status was created through the main resource")
	}
	client := s.dynamic.Resource(widgets).Namespace("default")
	merge := func(patch string, subresources ...string) *unstructured.Unstructured {
		t.Helper()
		u, err := client.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "m"}, subresources...)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	u := merge(`{"spec":{"size":9},"status":{"phase":"Ready","replicas":2,"selector":"app=a"}}`, "status")
	if got, _, _ := unstructured.NestedInt64(u.Object, "spec", "size"); got != 5 {
		t.Errorf("the spec was changed through /status: size %d", got)
	}
	if u.GetGeneration() != 1 {
		t.Errorf("a change of the status made generation %d", u.GetGeneration())
	}
	if u = merge(`{"spec":{"size":6},"status":{"phase":"Lost"}}`); u.GetGeneration() != 2 {
		t.Errorf("a change of the spec made generation %d", u.GetGeneration())
	}
	if got, _, _ := unstructured.NestedString(u.Object, "status", "phase"); got != "Ready" {
		t.Errorf("the status was changed through the main resource: %s", got)
	}

	scale, err := client.Get(t.Context(), "a", metav1.GetOptions{}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	if scale.GetKind() != "Scale" || scale.GetAPIVersion() != "autoscaling/v1" {
		t.Errorf("scale is %s %s", scale.GetAPIVersion(), scale.GetKind())
	}
	want := map[string]any{"replicas": int64(2), "selector": "app=a"}
	if diff := cmp.Diff(want, scale.Object["status"]); diff != "" {
		t.Errorf("scale's status (-want +got):\n%s", diff)
	}
	merge(`{"spec":{"replicas":4}}`, "scale")
	if u, err = client.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); got != 4 {
		t.Errorf("scaled to %d", got)
	}
	w := s.do(t, http.MethodPatch, widgetPath+"/a/scale", `{"spec":{"replicas":7}}`, "Content-Type", string(types.MergePatchType))
	if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "more replicas than size") {
		t.Errorf("scaled past its rule: %d %s", w.Code, w.Body)
	}
	if w := s.do(t, http.MethodGet, widgetPath+"/a/scale", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"); !strings.Contains(w.Body.String(), `"Desired"`) {
		t.Errorf("scale as a table: %s", w.Body)
	}
}

func TestInstance_Apply(t *testing.T) {
	t.Parallel()
	onDatabases(t, testApply)
}

func testApply(t *testing.T, s *server) {
	s.define(t, widgetDefinition)
	client := s.dynamic.Resource(widgets).Namespace("default")
	apply := func(manager, text string) (*unstructured.Unstructured, error) {
		return client.Apply(t.Context(), "a", object(t, "{apiVersion: example.com/v1, kind: Widget, metadata: {name: a}, spec: "+text+"}"),
			metav1.ApplyOptions{FieldManager: manager})
	}
	if _, err := apply("one", "{size: 3, tags: [old], parts: [{name: p, weight: 1}]}"); err != nil {
		t.Fatal(err)
	}
	u, err := apply("two", "{size: 3, tags: [new], parts: [{name: q}]}")
	if err != nil {
		t.Fatal(err)
	}
	got := u.Object["spec"].(map[string]any)
	if diff := cmp.Diff([]any{"old", "new"}, got["tags"]); diff != "" {
		t.Errorf("a set is merged (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{map[string]any{"name": "p", "weight": int64(1)}, map[string]any{"name": "q"}}, got["parts"]); diff != "" {
		t.Errorf("a list of maps is merged by its key (-want +got):\n%s", diff)
	}
	if _, err := apply("two", "{size: 4, tags: [new]}"); err == nil || !strings.Contains(err.Error(), `conflict with "one": .spec.size`) {
		t.Errorf("a conflict: %v", err)
	}
	if u, err = apply("one", "{size: 3}"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"new"}, u.Object["spec"].(map[string]any)["tags"]); diff != "" {
		t.Errorf("what is not applied any more is removed (-want +got):\n%s", diff)
	}
}

func TestInstance_FieldSelectorsAndWatches(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, widgetDefinition)
		client := s.dynamic.Resource(widgets).Namespace("default")
		events, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.color=blue"})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		s.create(t, widget(t, "a", `{"size": 3}`))
		s.create(t, widget(t, "b", `{"size": 3, "color": "blue"}`))
		list, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.color=red"})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].GetName() != "a" {
			t.Errorf("red ones: %v", list.Items)
		}
		for name, color := range map[string]string{"a": "blue", "b": "red"} {
			if _, err := client.Patch(t.Context(), name, types.JSONPatchType,
				[]byte(`[{"op":"replace","path":"/spec/color","value":"`+color+`"}]`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		var seen []string
		for range 3 {
			event := <-events.ResultChan()
			seen = append(seen, string(event.Type)+" "+event.Object.(*unstructured.Unstructured).GetName())
		}
		got := strings.Join(seen, ", ")
		if got != "ADDED b, ADDED a, DELETED b" && got != "ADDED b, DELETED b, ADDED a" {
			t.Errorf("blue ones: %s", got)
		}
		if _, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=3"}); !apierrors.IsBadRequest(err) {
			t.Errorf("a list by a field that is not selectable: %v", err)
		}
	})
}

// create creates an instance in the namespace default.
func (s *server) create(t *testing.T, body string) *unstructured.Unstructured {
	t.Helper()
	w := s.do(t, http.MethodPost, widgetPath, body)
	if w.Code != http.StatusCreated {
		t.Fatalf("create: %d %s", w.Code, w.Body)
	}
	return object(t, w.Body.String())
}
