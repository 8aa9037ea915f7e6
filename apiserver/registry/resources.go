package registry

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Resources returns the resources of all built-in groups that have objects, enabled or not.
func Resources() []schema.GroupResource { return slices.Collect(maps.Keys(Kinds())) }

// Kinds returns the kinds of Resources: those that have metadata and a kind of lists. Kinds of reviews have none.
func Kinds() map[schema.GroupResource]string {
	all := map[schema.GroupResource]string{}
	for _, gv := range legacyscheme.Scheme.PrioritizedVersionsAllGroups() {
		if gv.Group == "extensions" {
			continue // its kinds are served, and stored, in other groups
		}
		kinds := legacyscheme.Scheme.KnownTypes(gv)
		for kind, object := range kinds {
			if _, hasList := kinds[kind+"List"]; hasList && reflect.PointerTo(object).Implements(reflect.TypeFor[metav1.Object]()) {
				resource, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
				all[resource.GroupResource()] = kind
			}
		}
	}
	return all
}
