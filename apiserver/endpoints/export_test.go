package endpoints

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// DecodeReads makes s decode all reads instead of answering them from bytes.
func DecodeReads(s Serving) Serving {
	s.decodeReads = true
	return s
}

// WithoutWriteResult encodes the result of each write for its answer.
func WithoutWriteResult(s Serving) Serving {
	s.without.writeResult = true
	return s
}

// WithoutFieldRemoval leaves managed fields on objects after admission.
func WithoutFieldRemoval(s Serving) Serving {
	s.without.fieldRemoval = true
	return s
}

// WithoutStackGrowth leaves the stacks of writes to the Go runtime.
func WithoutStackGrowth(s Serving) Serving {
	s.without.stackGrowth = true
	return s
}

// FromBytes reports whether reads of a resource are answered from bytes.
func (r *Resource) FromBytes() bool { return r.encoded != nil }

// Pattern is the pattern of the route that serves a path; "" for a path that no route
// serves.
func (a *API) Pattern(path string) string {
	found := a.mux.find(path)
	for pattern, at := range a.mux.paths {
		if at == found {
			return pattern
		}
	}
	return ""
}

// WritesFromBytes reports whether writes are answered without another encoding.
func (r *Resource) WritesFromBytes() bool { return r.written != nil }

// PrintRow prints an object's row and returns a function that appends the row as it is at
// the time of that call. It returns nil if such rows are not kept, or if the resource has
// no tables made of rows.
func (r *Resource) PrintRow(ctx context.Context, obj runtime.Object) (func() (string, error), error) {
	if r.encoded == nil || r.encoded.formats.tables == nil {
		return nil, nil
	}
	row, constant, err := r.encoded.formats.tables.print(ctx, obj)
	if err != nil || !constant {
		return nil, err
	}
	return func() (string, error) {
		text, err := appendPrinted(nil, row)
		return string(text), err
	}, nil
}
