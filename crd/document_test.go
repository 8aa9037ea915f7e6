package crd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/openapi"
)

// newTestParts are parts of definitions that read gives.
func newTestParts() (*documentParts, *[]string) {
	var read []string
	return &documentParts{
		shared: &shared{read: func(_ context.Context, name, _ string) (*source, error) {
			read = append(read, name)
			return nil, errReplaced
		}},
		kept: map[partKey][]byte{},
	}, &read
}

// TestPartsAreKept: a part is built once, what can't be built hides itself alone, and
// what can't be read makes the document partial.
func TestPartsAreKept(t *testing.T) {
	parts, read := newTestParts()
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	definitions := []described{
		{definitionAt(1, "a", 1), "good"}, {definitionAt(1, "b", 1), "bad"}, {definitionAt(1, "c", 1), "gone"},
	}
	packed, err := openapi.Pack([]byte(`{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/apis/example.com/v1/widgets":{}},"components":{"schemas":{"W":{"type":"object"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	parts.kept[partKey{"good", "v1"}], parts.kept[partKey{"bad", "v1"}] = packed, nil
	text, err := parts.version3(t.Context(), gv, definitions)
	if !errors.Is(err, openapi.ErrPartial) || !strings.Contains(string(text), "/apis/example.com/v1/widgets") {
		t.Errorf("%s, %v", text, err)
	}
	if !slices.Equal(*read, []string{sample}) {
		t.Errorf("read %v", *read)
	}
	if text, err = parts.version3(t.Context(), gv, definitions[:2]); err != nil || !strings.Contains(string(text), `"W"`) {
		t.Errorf("without what is gone: %s, %v", text, err)
	}
	parts.keep(map[string]bool{"bad": true})
	if _, ok := parts.kept[partKey{"bad", "v1"}]; !ok || len(parts.kept) != 1 {
		t.Errorf("kept: %v", parts.kept)
	}
}

// TestPublishedAgain: the documents are published again when they say something else,
// and not for other changes of a definition.
func TestPublishedAgain(t *testing.T) {
	table, _ := newTestTable(&store{})
	p := &publisher{
		table: table, service: openapi.NewService(), build: "b",
		parts:  &documentParts{kept: map[partKey][]byte{}},
		groups: map[string]map[schema.GroupVersion][]described{},
	}
	publish := func(revision int, generation int64, change func(*apiextensionsv1.CustomResourceDefinition)) string {
		crd := definitionAt(revision, "a", generation)
		crd.Annotations = nil
		crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
		change(crd)
		strip(crd)
		table.put(crd, false)
		p.note("example.com")
		p.publish()
		return p.published.V2Hash + p.published.V3["apis/example.com/v1"].Hash
	}
	nothing := func(*apiextensionsv1.CustomResourceDefinition) {}
	first := publish(1, 1, nothing)
	if first == "" {
		t.Fatal("not published")
	}
	if publish(2, 1, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Status.StoredVersions = []string{"v1"}
	}) != first {
		t.Error("a change of the status changed the documents")
	}
	if publish(3, 1, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	}) != first {
		t.Error("another conversion changed the documents")
	}
	second := publish(4, 1, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "new"
	})
	if second == first {
		t.Error("another schema left the documents")
	}
	p.build = "c"
	if publish(5, 1, nothing) == first {
		t.Error("another program left the documents")
	}
}
