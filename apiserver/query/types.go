package query

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Query asks one statement. It is not stored: its creation is answered with the result, in Status.
type Query struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// Spec is what is asked.
type Spec struct {
	// SQL is one SELECT, in SQLite's dialect.
	SQL string `json:"sql"`
	// At is the moment that the tables show: a time of RFC 3339, a revision, or a negative duration such as
	// -2h before now. Empty means now.
	At string `json:"at,omitempty"`
	// Parameters are the values of ?1, ?2, …: strings, numbers, booleans or null.
	Parameters []json.RawMessage `json:"parameters,omitempty"`
	// TimeoutSeconds bounds the query, if it is less than the server's --sql-timeout.
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
	// Limit is how many rows the answer has at most; nil means 10,000, and 100,000 for an
	// answer that is streamed, which are also the most.
	Limit *int64 `json:"limit,omitempty"`
}

// Status is the result.
type Status struct {
	// ResourceVersion is the revision that all tables show.
	ResourceVersion string         `json:"resourceVersion,omitempty"`
	Columns         []ResultColumn `json:"columns,omitempty"`
	// Rows have a value for each column: a string, number, boolean or null, or, of a column of
	// the type json, any JSON.
	Rows [][]json.RawMessage `json:"rows"`
	// Truncated says that there are more rows than the limit.
	Truncated bool `json:"truncated,omitempty"`
}

// ResultColumn is a column of a result. Type is empty for an expression: its values may be of any
// type.
type ResultColumn struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
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
