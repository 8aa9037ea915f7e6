package query

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/common"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
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
	// By it a webhook's or a policy's change of a query reaches the query.
	utilruntime.Must(scheme.AddConversionFunc((*Query)(nil), (*Query)(nil), func(from, to any, _ conversion.Scope) error {
		*to.(*Query) = *from.(*Query).DeepCopyObject().(*Query)
		return nil
	}))
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
	return documents.Definitions(ref,
		documents.Model{Type: Query{}, Description: "Query is one SELECT over the objects that the user may list. It is not stored: its creation is answered with the result."},
		documents.Model{Type: Spec{}, Description: "QuerySpec is what is asked."},
		documents.Model{Type: Status{}, Description: "QueryStatus is the result of a query."},
		documents.Model{Type: ResultColumn{}, Description: "ResultColumn is a column of a result."})
}

// Query asks one statement. It is not stored: its creation is answered with the result, in Status.
type Query struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty" description:"Standard object's metadata. A query is not stored and needs no name."`

	Spec   Spec   `json:"spec" description:"Spec is what is asked."`
	Status Status `json:"status,omitempty" description:"Status is the result."`
}

// NewQuery returns the Query of a statement, with the values of its parameters.
func NewQuery(statement string, parameters ...json.RawMessage) *Query {
	return &Query{
		TypeMeta: metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: queryKind.Kind},
		Spec:     Spec{SQL: statement, Parameters: parameters},
	}
}

// Texts returns the values of parameters that are texts, whatever they look like.
func Texts(texts ...string) (values []json.RawMessage) {
	for _, text := range texts {
		value, _ := json.Marshal(text) // a string can't fail
		values = append(values, value)
	}
	return values
}

// Spec is what is asked. A nil Limit means mostRows, or mostStreamed for an answer that is streamed.
type Spec struct {
	SQL            string            `json:"sql" description:"SQL is one SELECT, in SQLite's dialect. The tables are the plural names of resources, such as pods, or \"deployments.apps\"."`
	At             string            `json:"at,omitempty" description:"At is the moment that the tables show: a time of RFC 3339, a revision, or a negative duration such as -2h before now. Empty means now."`
	Parameters     []json.RawMessage `json:"parameters,omitempty" description:"Parameters are the values of ?1, ?2, …: strings, numbers, booleans or null."`
	TimeoutSeconds *int32            `json:"timeoutSeconds,omitempty" description:"TimeoutSeconds bounds the query, if it is less than the server's --sql-timeout."`
	Limit          *int64            `json:"limit,omitempty" description:"Limit is how many rows the answer has at most. Defaults to 10000, which is also the most."`
}

// Status is the result.
type Status struct {
	ResourceVersion string         `json:"resourceVersion,omitempty" description:"ResourceVersion is the revision that all tables show."`
	Columns         []ResultColumn `json:"columns,omitempty" description:"Columns are the columns of the result."`
	// A value of a column of the type json is any JSON; others are a string, number, boolean or null.
	Rows      [][]json.RawMessage `json:"rows" openapi:"optional" description:"Rows have a value for each column."`
	Truncated bool                `json:"truncated,omitempty" description:"Truncated says that there are more rows than the limit."`
}

// ResultColumn is a column of a result.
type ResultColumn struct {
	Name string `json:"name" description:"Name is the name of the column."`
	Type string `json:"type,omitempty" description:"Type is text, integer, real, boolean, time or json; absent for an expression, whose values may be of any type."`
}

// DeepCopyObject implements runtime.Object.
func (q *Query) DeepCopyObject() runtime.Object {
	out := *q
	q.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Parameters = cloneValues(q.Spec.Parameters)
	if q.Spec.TimeoutSeconds != nil {
		out.Spec.TimeoutSeconds = new(*q.Spec.TimeoutSeconds)
	}
	if q.Spec.Limit != nil {
		out.Spec.Limit = new(*q.Spec.Limit)
	}
	out.Status.Columns = slices.Clone(q.Status.Columns)
	out.Status.Rows = slices.Clone(q.Status.Rows)
	for i, row := range out.Status.Rows {
		out.Status.Rows[i] = cloneValues(row)
	}
	return &out
}

func cloneValues(values []json.RawMessage) []json.RawMessage {
	values = slices.Clone(values)
	for i, v := range values {
		values[i] = slices.Clone(v)
	}
	return values
}
