package managedfields

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"byre/apiserver/handlers/documents"
)

// TestCache_IsBounded: the cache drops unused entries and never holds more than its limit.
func TestCache_IsBounded(t *testing.T) {
	const limit = 10_000
	c := NewFieldSets(limit)
	c.put("used", "fields")
	for i := range 1_000 {
		c.put(fmt.Sprint("shape ", i), "fields")
		if fields, ok := c.get("used"); !ok || fields != "fields" {
			t.Fatalf("what is used was dropped after %d others", i)
		}
		size := 0
		for _, part := range []map[string]string{c.recent, c.older} {
			for shape, fields := range part {
				size += len(shape) + len(fields) + entryOverhead
			}
		}
		if size > limit {
			t.Fatalf("%d bytes", size)
		}
	}
	if _, ok := c.get("shape 0"); ok {
		t.Error("what is not used is still there")
	}
	large := strings.Repeat("x", limit)
	c.put(large, "fields")
	if _, ok := c.get(large); ok {
		t.Error("an entry larger than the cache was kept")
	}
}

// TestParts_HaveTheSpec: for the kinds that are updated most, an update of the status
// does not compare the spec.
func TestParts_HaveTheSpec(t *testing.T) {
	for _, object := range []runtime.Object{&corev1.Pod{}, &corev1.Node{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}} {
		kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
		if err != nil {
			t.Fatal(err)
		}
		object.GetObjectKind().SetGroupVersionKind(kinds[0])
		models := documents.NewModels("test", generated.GetOpenAPIDefinitions,
			legacyscheme.Scheme).Schemas(util.GetCanonicalTypeName(object))
		v, err := NewTypeConverter(models).ObjectToTyped(object, typed.AllowDuplicates)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, part := range partsOf(object, v) {
			names = append(names, part.JsonName)
		}
		if !slices.Contains(names, "spec") || !slices.Contains(names, "status") {
			t.Errorf("the parts of a %s are %v", kinds[0].Kind, names)
		}
	}
}
