package crd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
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
			"free":  map[string]any{"anything": map[string]any{"goes": true}},
			"parts": []any{map[string]any{"name": "x", "weight": 1.0}},
			"template": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p"},
				"spec": map[string]any{"any": 1.0}},
		}
		if diff := cmp.Diff(want, spec(t, w.Body.Bytes())); diff != "" {
			t.Errorf("create answers (-want +got):\n%s", diff)
		}
		for _, path := range []string{widgetPath + "/a", widgetPath + "/a" + decoded} {
			if diff := cmp.Diff(want, spec(t, s.do(t, http.MethodGet, path, "").Body.Bytes())); diff != "" {
				t.Errorf("GET %s (-want +got):\n%s", path, diff)
			}
		}
	})
}

// decoded is the query of a get that upstream's handler answers: only that one knows the parameter.
const decoded = "?export=false"

// TestInstance_IndentedIsUpstreams: gets and lists in indented JSON, which are made from the stored bytes, equal those
// of upstream's serializer.
func TestInstance_IndentedIsUpstreams(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, widgetDefinition)
		s.create(t, widget(t, "a", `{"size": 3, "note": "<a href=\"x\">&\u2028</a> \\ {[,:]}", "free": {
			"large": 9223372036854775807, "small": -9223372036854775808, "float": 1.5, "exponent": 1e21, "tiny": 1e-9,
			"empty": {}, "none": [], "null": null, "nested": [[], [{}], [{"a": [1, "two"]}]], "<&>": "é😀"}}`))
		get := func(path string) string {
			w := s.do(t, http.MethodGet, path, "")
			if w.Code != http.StatusOK {
				t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
			}
			return w.Body.String()
		}
		for _, pretty := range []string{"true", "false"} {
			path := widgetPath + "/a?pretty=" + pretty
			if diff := cmp.Diff(get(path+"&export=false"), get(path)); diff != "" {
				t.Errorf("pretty=%s (-want +got):\n%s", pretty, diff)
			}
		}
		for _, path := range []string{widgetPath, widgetPath + "?limit=1", widgetPath + "?labelSelector=no%3Dsuch"} {
			var want bytes.Buffer
			if err := json.Indent(&want, []byte(strings.TrimSuffix(get(path), "\n")), "", "  "); err != nil {
				t.Fatal(err)
			}
			query := "?"
			if strings.Contains(path, "?") {
				query = "&"
			}
			if diff := cmp.Diff(want.String(), get(path+query+"pretty=1")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
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
		for _, path := range []string{widgetPath + "/a", widgetPath + "/a" + decoded} {
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
		{"range", http.MethodPost, widgetPath, widget(t, "x", `{"size": 11}`), 422,
			"spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"},
		{"type", http.MethodPost, widgetPath, widget(t, "x", `{"size": "3"}`), 422,
			`spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"`},
		{"enum", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "color": "pink"}`), 422,
			`Unsupported value: "pink": supported values: "red", "green", "blue"`},
		{"set", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "tags": ["a", "a"]}`), 422,
			`spec.tags[1]: Duplicate value: "a"`},
		{"map", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "parts": [{"name": "a"}, {"name": "a"}]}`), 422,
			`Duplicate value`},
		{"rule", http.MethodPost, widgetPath, widget(t, "x", `{"size": 3, "replicas": 4}`), 422, "more replicas than size"},
		{"transition rule", http.MethodPut, widgetPath + "/big", "", 422,
			"spec.size: Invalid value: a big size may not shrink"},
		{"kind", http.MethodPost, widgetPath, `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"x"}}`, 422,
			`kind: Invalid value: "Gadget": must be Widget`},
		{"name", http.MethodPost, widgetPath, widget(t, "No Name", `{"size": 3}`), 422, "metadata.name"},
		{"metadata", http.MethodPost, widgetPath,
			`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x","labels":{"a":1}},"spec":{"size":1}}`, 400,
			""},
		{"strict", http.MethodPost, widgetPath + "?fieldValidation=Strict",
			widget(t, "x", `{"size": 3, "unknown": 1, "size": 4}`), 400, `strict decoding error`},
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
	created := s.create(t,
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":5},"status":{"phase":"made up"}}`)
	if _, ok := created.Object["status"]; ok {
		t.Error("a status was created through the main resource")
	}
	client := s.dynamic.Resource(widgets).Namespace("default")
	merge := func(patch string, subresources ...string) *unstructured.Unstructured {
		t.Helper()
		u, err := client.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "m"},
			subresources...)
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
	w := s.do(t, http.MethodPatch, widgetPath+"/a/scale", `{"spec":{"replicas":7}}`, "Content-Type",
		string(types.MergePatchType))
	if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "more replicas than size") {
		t.Errorf("scaled past its rule: %d %s", w.Code, w.Body)
	}
	if w := s.do(t, http.MethodGet, widgetPath+"/a/scale", "", "Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io"); !strings.Contains(w.Body.String(), `"Desired"`) {
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
		return client.Apply(t.Context(), "a",
			object(t, "{apiVersion: example.com/v1, kind: Widget, metadata: {name: a}, spec: "+text+"}"),
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
	if diff := cmp.Diff([]any{map[string]any{"name": "p", "weight": int64(1)}, map[string]any{"name": "q"}},
		got["parts"]); diff != "" {
		t.Errorf("a list of maps is merged by its key (-want +got):\n%s", diff)
	}
	if _, err := apply("two", "{size: 4, tags: [new]}"); err == nil ||
		!strings.Contains(err.Error(), `conflict with "one": .spec.size`) {
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
		if _, err := client.List(t.Context(),
			metav1.ListOptions{FieldSelector: "spec.size=3"}); !apierrors.IsBadRequest(err) {
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

// selected returns the names of the widgets that a field selector finds.
func (s *server) selected(t *testing.T, selector string) string {
	t.Helper()
	list, err := s.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	return strings.Join(names, " ")
}

func (s *server) expectSelected(t *testing.T, want map[string]string) {
	t.Helper()
	for selector, names := range want {
		if got := s.selected(t, selector); got != names {
			t.Errorf("%s selects %q, want %q", selector, got, names)
		}
	}
}

// TestSelectableFields_Change changes the selectable fields while there are widgets:
// selectors find those that were written before, by their values under the current
// defaults.
func TestSelectableFields_Change(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		s.define(t, widgetDefinition)
		for name, spec := range map[string]string{"a": `{"size":3}`, "b": `{"size":3,"color":"green"}`,
			"c": `{"size":4,"color":"red"}`} {
			s.create(t, widget(t, name, spec))
		}
		s.expectSelected(t, map[string]string{
			"spec.color=red": "a c", "spec.color=green": "b", "spec.color=blue": "", "spec.color!=red": "b",
			"spec.color=red,metadata.name=c": "c",
		})
		client := s.dynamic.Resource(widgets).Namespace("default")
		events, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.color=green", ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		paint := func(name, color string) {
			t.Helper()
			patch := fmt.Sprintf(`{"spec":{"color":%q}}`, color)
			if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(patch),
				metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		paint("c", "green")
		paint("b", "red")
		for _, want := range []string{"ADDED b", "ADDED c", "DELETED b"} {
			event := <-events.ResultChan()
			if got := fmt.Sprintf("%s %s", event.Type, event.Object.(*unstructured.Unstructured).GetName()); got != want {
				t.Errorf("watched %s, want %s", got, want)
			}
		}
		events.Stop()
		s.expectSelected(t, map[string]string{"spec.color=red": "a b", "spec.color=green": "c"})

		s.redefine(t, func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
			v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.size"}, {JSONPath: ".spec.flavor"},
				{JSONPath: ".spec.new"}}
			properties := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties
			properties["flavor"] = apiextensionsv1.JSONSchemaProps{Type: "string",
				Default: &apiextensionsv1.JSON{Raw: []byte(`"plain"`)}}
			properties["new"] = apiextensionsv1.JSONSchemaProps{Type: "boolean"}
		})
		s.create(t, widget(t, "d", `{"size":4,"flavor":"sweet","new":true}`))
		s.expectSelected(t, map[string]string{
			"spec.size=3": "a b", "spec.size=4": "c d", "spec.flavor=plain": "a b c", "spec.flavor=sweet": "d",
			"spec.new=true": "d", "spec.size=4,spec.new=true": "d",
		})
		if w := s.do(t, http.MethodGet, widgetPath+"?fieldSelector=spec.color%3Dred", ""); w.Code != http.StatusBadRequest {
			t.Errorf("by a field that can't be selected by any more: %d %s", w.Code, w.Body)
		}
	})
}

// TestLabels_FollowTheConversion: a webhook may change labels. A selector of a version that is not stored selects by
// what the webhook answers.
func TestLabels_FollowTheConversion(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		toBeta := func(r *apiextensionsv1.ConversionResponse) {
			for i := range r.ConvertedObjects {
				if u := r.ConvertedObjects[i].Object.(*unstructured.Unstructured); u.GetAPIVersion() == "example.com/v1beta1" {
					u.SetLabels(map[string]string{"by": "webhook"})
				}
			}
		}
		c.spoil.Store(&toBeta)
		s.defineConverted(t, c)
		body := `{"apiVersion":"example.com/v1","kind":"CronTab","metadata":{"name":"a","labels":{"by":"user"}},"spec":{}}`
		if w := s.do(t, http.MethodPost, crontabPath("v1"), body); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, test := range []struct {
			version, label string
			want           int
		}{{"v1", "user", 1}, {"v1", "webhook", 0}, {"v1beta1", "user", 0}, {"v1beta1", "webhook", 1}} {
			const metadata = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
			for _, accept := range []string{"application/json", "application/json;" + metadata,
				"application/vnd.kubernetes.protobuf;" + metadata} {
				w := s.do(t, http.MethodGet, crontabPath(test.version)+"?labelSelector=by%3D"+test.label, "", "Accept", accept)
				got, shown := strings.Count(w.Body.String(), "default"), strings.Contains(w.Body.String(), test.label)
				if got != test.want || shown != (test.want > 0) {
					t.Errorf("%s by the label %s as %s: %d objects, want %d: %s", test.version, test.label, accept, got, test.want,
						w.Body)
				}
			}
		}
	})
}

// redefine changes a version of the definition of widgets.
func (s *server) redefine(t *testing.T, change func(*apiextensionsv1.CustomResourceDefinitionVersion)) {
	t.Helper()
	s.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
		change(&crd.Spec.Versions[0])
	})
}

// BenchmarkSelect lists ten of 10,000 widgets: by a field, for which there is an index, and
// by a label, for which there is none.
func BenchmarkSelect(b *testing.B) {
	s := start(b, dbtest.SQLite(b))
	s.define(b, widgetDefinition)
	s.fill(b, 10_000, 1000)
	for _, by := range []struct{ name, query string }{
		{"field", "?fieldSelector=spec.color%3Dblue"},
		{"label", "?labelSelector=color%3Dblue"},
	} {
		b.Run(by.name, func(b *testing.B) {
			for b.Loop() {
				w := s.do(b, http.MethodGet, widgetPath+by.query, "")
				if n := strings.Count(w.Body.String(), `"kind":"Widget"`); n != 10 {
					b.Fatalf("%d widgets", n)
				}
			}
		})
	}
}

// fill writes n widgets directly to the store; one in `every` is blue.
func (s *server) fill(b *testing.B, n, every int) {
	b.Helper()
	var writers errgroup.Group
	writers.SetLimit(64)
	for i := range n {
		color := "red"
		if i%every == 0 {
			color = "blue"
		}
		name := fmt.Sprintf("w%d", i)
		writers.Go(func() error {
			value := fmt.Sprintf(
				`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"color":%[2]q},"name":%[1]q,"namespace":"default"},"spec":{"color":%[2]q,"size":3}}`, name, color)
			_, err := s.store.Commit(b.Context(), sqlstore.Write{
				Op: sqlstore.Create,
				Key: sqlstore.Key{Group: "example.com", Resource: "widgets", Owner: sqlstore.Custom, Namespace: "default",
					Name: name},
				Value: []byte(value),
			})
			return err
		})
	}
	if err := writers.Wait(); err != nil {
		b.Fatal(err)
	}
}

// TestSelectableFields_FollowTheConversion: after a change of the storage version, objects that are stored in the
// earlier one are selected by the values that the webhook converts them to.
func TestSelectableFields_FollowTheConversion(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		toBeta := func(r *apiextensionsv1.ConversionResponse) {
			for i := range r.ConvertedObjects {
				u := r.ConvertedObjects[i].Object.(*unstructured.Unstructured)
				if u.GetAPIVersion() == "example.com/v1beta1" {
					_ = unstructured.SetNestedField(u.Object, "converted", "spec", "schedule")
				}
			}
		}
		c.spoil.Store(&toBeta)
		s.defineConverted(t, c)
		s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[1].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.schedule"}}
		})
		if w := s.do(t, http.MethodPost, crontabPath("v1"),
			crontab("v1", "a", `{"schedule":"stored"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		s.change(t, "crontabs.example.com", storeLast)
		client := s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1beta1",
			Resource: "crontabs"}).Namespace("default")
		selected := metav1.ListOptions{FieldSelector: "spec.schedule=converted"}
		list, err := client.List(t.Context(), selected)
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 {
			t.Errorf("selected %d objects, want 1", len(list.Items))
		}
		selected.ResourceVersion = list.GetResourceVersion()
		events, err := client.Watch(t.Context(), selected)
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		changed := crontab("v1beta1", "a", `{"schedule":"other"}`)
		if w := s.do(t, http.MethodPatch, crontabPath("v1beta1")+"/a", changed, "Content-Type",
			"application/merge-patch+json"); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		// Where a is not noticed, this ends the wait for it.
		s.do(t, http.MethodPost, crontabPath("v1beta1"), crontab("v1beta1", "b", `{"schedule":"converted"}`))
		event := <-events.ResultChan()
		if got := event.Object.(*unstructured.Unstructured).GetName(); event.Type != apiwatch.Deleted || got != "a" {
			t.Errorf("watched %s %s, want DELETED a", event.Type, got)
		}
	})
}

// Versions with different schemas may have the same selectable fields, which a client reads as it has written them.
func TestSelectableFields_AreSharedByVersions(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		crd := parse(t, crontabDefinition)
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.schedule"}}
		}
		made := s.establish(t, crd)
		check := func(made *apiextensionsv1.CustomResourceDefinition, generation int64) {
			t.Helper()
			for i, v := range made.Spec.Versions {
				if want := crd.Spec.Versions[i].SelectableFields; !slices.Equal(v.SelectableFields, want) ||
					made.Generation != generation {
					t.Errorf("%s has %v at generation %d, want %v at %d", v.Name, v.SelectableFields, made.Generation, want,
						generation)
				}
			}
		}
		check(made, 1)
		check(s.change(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Labels = map[string]string{"a": "b"}
		}), 1)
		check(s.change(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Names.ShortNames = []string{"ct"}
		}), 2)
		for name, schedule := range map[string]string{"a": "1 *", "b": "2 *"} {
			if w := s.do(t, http.MethodPost, crontabPath("v1"),
				crontab("v1", name, `{"schedule":"`+schedule+`"}`)); w.Code != http.StatusCreated {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		for _, version := range []string{"v1", "v1beta1"} {
			w := s.do(t, http.MethodGet, crontabPath(version)+"?fieldSelector=spec.schedule%3D2+*", "")
			if body := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(body, `"name":"b"`) ||
				strings.Contains(body, `"name":"a"`) {
				t.Errorf("selected in %s: %d %s", version, w.Code, body)
			}
		}
	})
}
