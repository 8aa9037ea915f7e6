package crd_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
)

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
		for name, spec := range map[string]string{"a": `{"size":3}`, "b": `{"size":3,"color":"green"}`, "c": `{"size":4,"color":"red"}`} {
			s.create(t, widget(t, name, spec))
		}
		s.expectSelected(t, map[string]string{
			"spec.color=red": "a c", "spec.color=green": "b", "spec.color=blue": "", "spec.color!=red": "b", "spec.color=red,metadata.name=c": "c",
		})
		client := s.dynamic.Resource(widgets).Namespace("default")
		events, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.color=green", ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		paint := func(name, color string) {
			t.Helper()
			patch := fmt.Sprintf(`{"spec":{"color":%q}}`, color)
			if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
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
			v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.size"}, {JSONPath: ".spec.flavor"}, {JSONPath: ".spec.new"}}
			properties := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties
			properties["flavor"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"plain"`)}}
			properties["new"] = apiextensionsv1.JSONSchemaProps{Type: "boolean"}
		})
		s.create(t, widget(t, "d", `{"size":4,"flavor":"sweet","new":true}`))
		s.expectSelected(t, map[string]string{
			"spec.size=3": "a b", "spec.size=4": "c d", "spec.flavor=plain": "a b c", "spec.flavor=sweet": "d", "spec.new=true": "d", "spec.size=4,spec.new=true": "d",
		})
		if w := s.do(t, http.MethodGet, widgetPath+"?fieldSelector=spec.color%3Dred", ""); w.Code != http.StatusBadRequest {
			t.Errorf("by a field that can't be selected by any more: %d %s", w.Code, w.Body)
		}
	})
}

// TestLabels_FollowTheConversion: a webhook may change labels. A selector of a version that is not stored selects by what the
// webhook answers.
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
			for _, accept := range []string{"application/json", "application/json;" + metadata, "application/vnd.kubernetes.protobuf;" + metadata} {
				w := s.do(t, http.MethodGet, crontabPath(test.version)+"?labelSelector=by%3D"+test.label, "", "Accept", accept)
				got, shown := strings.Count(w.Body.String(), "default"), strings.Contains(w.Body.String(), test.label)
				if got != test.want || shown != (test.want > 0) {
					t.Errorf("%s by the label %s as %s: %d objects, want %d: %s", test.version, test.label, accept, got, test.want, w.Body)
				}
			}
		}
	})
}

// redefine changes a version of the definition of widgets.
func (s *server) redefine(t *testing.T, change func(*apiextensionsv1.CustomResourceDefinitionVersion)) {
	t.Helper()
	s.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) { change(&crd.Spec.Versions[0]) })
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
			value := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"color":%[2]q},"name":%[1]q,"namespace":"default"},"spec":{"color":%[2]q,"size":3}}`, name, color)
			_, err := s.store.Commit(b.Context(), sqlstore.Write{
				Op:    sqlstore.Create,
				Key:   sqlstore.Key{Group: "example.com", Resource: "widgets", Owner: sqlstore.Custom, Namespace: "default", Name: name},
				Value: []byte(value),
			})
			return err
		})
	}
	if err := writers.Wait(); err != nil {
		b.Fatal(err)
	}
}

// TestSelectableFields_FollowTheConversion: after a change of the storage version, objects that are stored in the earlier one
// are selected by the values that the webhook converts them to.
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
		if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"stored"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		s.change(t, "crontabs.example.com", storeLast)
		client := s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1beta1", Resource: "crontabs"}).Namespace("default")
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
		if w := s.do(t, http.MethodPatch, crontabPath("v1beta1")+"/a", changed, "Content-Type", "application/merge-patch+json"); w.Code != http.StatusOK {
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
				if want := crd.Spec.Versions[i].SelectableFields; !slices.Equal(v.SelectableFields, want) || made.Generation != generation {
					t.Errorf("%s has %v at generation %d, want %v at %d", v.Name, v.SelectableFields, made.Generation, want, generation)
				}
			}
		}
		check(made, 1)
		check(s.change(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Labels = map[string]string{"a": "b"} }), 1)
		check(s.change(t, crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Names.ShortNames = []string{"ct"} }), 2)
		for name, schedule := range map[string]string{"a": "1 *", "b": "2 *"} {
			if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", name, `{"schedule":"`+schedule+`"}`)); w.Code != http.StatusCreated {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		for _, version := range []string{"v1", "v1beta1"} {
			w := s.do(t, http.MethodGet, crontabPath(version)+"?fieldSelector=spec.schedule%3D2+*", "")
			if body := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(body, `"name":"b"`) || strings.Contains(body, `"name":"a"`) {
				t.Errorf("selected in %s: %d %s", version, w.Code, body)
			}
		}
	})
}
