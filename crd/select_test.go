package crd_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

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
