package crd

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/handlers/documents"
	"byre/crd/instances"
)

// TestSpecCache_BuildsOnce: each spec is built once. A spec whose build fails is left out;
// a definition that cannot be read makes the document partial.
func TestSpecCache_BuildsOnce(t *testing.T) {
	t.Parallel()
	var read []string
	cache := newSpecCache(sourceReader(func(name, _ string) (instances.Source, error) {
		read = append(read, name)
		return nil, instances.ErrReplaced
	}))
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	definitions := []specInput{
		{definitionAt(1, "a", 1), "good"}, {definitionAt(1, "b", 1), "bad"}, {definitionAt(1, "c", 1), "gone"},
	}
	packed, err := documents.Compress(
		[]byte(`{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/apis/example.com/v1/widgets":{}},"components":{"schemas":{"W":{"type":"object"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	cache.byKey[specKey{"good", "v1"}], cache.byKey[specKey{"bad", "v1"}] = packed, nil
	text, err := cache.mergedV3(t.Context(), gv, definitions)
	if !errors.Is(err, documents.ErrPartial) || !strings.Contains(string(text), "/apis/example.com/v1/widgets") {
		t.Errorf("%s, %v", text, err)
	}
	if !slices.Equal(read, []string{sample}) {
		t.Errorf("read %v", read)
	}
	if text, err = cache.mergedV3(t.Context(), gv, definitions[:2]); err != nil || !strings.Contains(string(text), `"W"`) {
		t.Errorf("without what is gone: %s, %v", text, err)
	}
	cache.retain(map[string]bool{"bad": true})
	if _, ok := cache.byKey[specKey{"bad", "v1"}]; !ok || len(cache.byKey) != 1 {
		t.Errorf("kept: %v", cache.byKey)
	}
}

// TestOpenAPIPublisher_PublishesChanges: a change of a definition publishes the documents
// again only if it changes their contents.
func TestOpenAPIPublisher_PublishesChanges(t *testing.T) {
	t.Parallel()
	r := newTestResolver(&fakeStore{})
	p := newOpenAPIPublisher(r, documents.NewOpenAPI(), "b", nil)
	publish := func(revision int, generation int64, change func(*apiextensionsv1.CustomResourceDefinition)) string {
		crd := definitionAt(revision, "a", generation)
		crd.Annotations = nil
		crd.Spec.Versions[0].Schema =
			&apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
		change(crd)
		instances.Strip(crd)
		r.put(crd, false)
		p.update("example.com")
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
