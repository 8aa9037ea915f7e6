package history

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/handlers"
	"byre/apiserver/storage/changes"
)

// GroupName is the name of the group.
const GroupName = changes.Group

var (
	groupVersion  = schema.GroupVersion{Group: GroupName, Version: "v1"}
	groupResource = schema.GroupResource{Group: GroupName, Resource: changes.Resource}
)

// newScheme returns a scheme with the types of the group.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion, &Change{}, &ChangeList{})
	// The types of metav1 are those of the core group: with another version of them the OpenAPI
	// documents of this and of other servers would define them differently.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.WatchEvent{})
	err := scheme.AddFieldLabelConversionFunc(groupVersion.WithKind("Change"), func(label, value string) (string, string, error) {
		if !slices.Contains(selectable, label) {
			return "", "", fmt.Errorf("%q is not a known field selector: only %q", label, selectable)
		}
		return label, value, nil
	})
	if err != nil {
		panic(err) // the function is the only one of the kind
	}
	return scheme
}

// NewGroup returns the group that a Storage serves.
func NewGroup(s *Storage) handlers.Group {
	return handlers.NewTextGroup(groupVersion, newScheme(), map[string]rest.Storage{groupResource.Resource: s})
}
