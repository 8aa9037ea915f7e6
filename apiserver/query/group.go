package query

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/handlers"
)

// GroupName is the name of the group.
const GroupName = "sql.byre.dev"

var (
	groupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}
	queries      = groupVersion.WithResource("queries")
	queryKind    = groupVersion.WithKind("Query")
)

// newScheme returns a scheme with the types of the group.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion, &Query{})
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}

// NewGroup returns the group that a Storage serves.
func NewGroup(s *Storage) handlers.Group {
	return handlers.NewTextGroup(groupVersion, newScheme(), map[string]rest.Storage{queries.Resource: s})
}
