package query

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/common"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/openapi"
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

const modelPrefix = "dev.byre.sql.v1."

// OpenAPIModelName names the type in OpenAPI documents.
func (Query) OpenAPIModelName() string { return modelPrefix + "Query" }

// OpenAPIModelName names the type in OpenAPI documents.
func (Spec) OpenAPIModelName() string { return modelPrefix + "QuerySpec" }

// OpenAPIModelName names the type in OpenAPI documents.
func (Status) OpenAPIModelName() string { return modelPrefix + "QueryStatus" }

// OpenAPIModelName names the type in OpenAPI documents.
func (ResultColumn) OpenAPIModelName() string { return modelPrefix + "ResultColumn" }

// Definitions is what upstream's generator would make of the types.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	return openapi.Definitions(ref,
		openapi.Model{Type: Query{}, Description: "Query is one SELECT over the objects that the user may list. It is not stored: its creation is answered with the result."},
		openapi.Model{Type: Spec{}, Description: "QuerySpec is what is asked."},
		openapi.Model{Type: Status{}, Description: "QueryStatus is the result of a query."},
		openapi.Model{Type: ResultColumn{}, Description: "ResultColumn is a column of a result."})
}
