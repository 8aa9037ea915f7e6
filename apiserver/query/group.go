package query

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

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
	query := map[string]spec.Schema{
		"metadata": openapi.Reference(ref, metav1.ObjectMeta{}.OpenAPIModelName(), "Standard object's metadata. A query is not stored and needs no name."),
		"spec":     openapi.Reference(ref, Spec{}.OpenAPIModelName(), "Spec is what is asked."),
		"status":   openapi.Reference(ref, Status{}.OpenAPIModelName(), "Status is the result."),
	}
	maps.Copy(query, openapi.TypeMeta())
	values := openapi.Items(spec.Schema{}, "")
	return map[string]common.OpenAPIDefinition{
		Query{}.OpenAPIModelName(): openapi.Definition("Query is one SELECT over the objects that the user may list. It is not stored: its creation is answered with the result.", query,
			[]string{"spec"}, metav1.ObjectMeta{}.OpenAPIModelName(), Spec{}.OpenAPIModelName(), Status{}.OpenAPIModelName()),
		Spec{}.OpenAPIModelName(): openapi.Definition("QuerySpec is what is asked.", map[string]spec.Schema{
			"sql":            openapi.Property("string", "", "SQL is one SELECT, in SQLite's dialect. The tables are the plural names of resources, such as pods, or \"deployments.apps\"."),
			"at":             openapi.Property("string", "", "At is the moment that the tables show: a time of RFC 3339, a revision, or a negative duration such as -2h before now. Empty means now."),
			"parameters":     openapi.Items(spec.Schema{}, "Parameters are the values of ?1, ?2, …: strings, numbers, booleans or null."),
			"timeoutSeconds": openapi.Property("integer", "int32", "TimeoutSeconds bounds the query, if it is less than the server's --sql-timeout."),
			"limit":          openapi.Property("integer", "int64", "Limit is how many rows the answer has at most. Defaults to 10000, which is also the most."),
		}, []string{"sql"}),
		Status{}.OpenAPIModelName(): openapi.Definition("QueryStatus is the result of a query.", map[string]spec.Schema{
			"resourceVersion": openapi.Property("string", "", "ResourceVersion is the revision that all tables show."),
			"columns":         openapi.List(ref, ResultColumn{}.OpenAPIModelName(), "Columns are the columns of the result."),
			"rows":            openapi.Items(values, "Rows have a value for each column."),
			"truncated":       openapi.Property("boolean", "", "Truncated says that there are more rows than the limit."),
		}, nil, ResultColumn{}.OpenAPIModelName()),
		ResultColumn{}.OpenAPIModelName(): openapi.Definition("ResultColumn is a column of a result.", map[string]spec.Schema{
			"name": openapi.Property("string", "", "Name is the name of the column."),
			"type": openapi.Property("string", "", "Type is text, integer, real, boolean, time or json; absent for an expression, whose values may be of any type."),
		}, []string{"name"}),
	}
}
