package openapi

import (
	"context"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A Source is part of what the API's documents say: the built-in groups, the
// custom resources of one definition, one aggregated server.
type Source struct {
	// V2 makes its part of the document of version 2, of what is at hand: all who
	// ask for a document wait meanwhile. Nil if it has none. The result belongs to
	// the caller.
	V2 func(context.Context) (*spec.Swagger, error)
	// V3 has the documents of version 3 by path ("apis/apps/v1").
	V3 map[string]Document
}

// A Document is one document of version 3.
type Document struct {
	// Hash changes whenever the document does.
	Hash string
	// JSON makes the document, of what is at hand, like Source.V2.
	JSON func(context.Context) ([]byte, error)
}

// Source makes a source of roots. build identifies the program, see
// BuildIdentity.
func (m *Models) Source(roots []Root, build string) Source {
	source := Source{
		V2: func(context.Context) (*spec.Swagger, error) { return m.V2(roots) },
		V3: map[string]Document{},
	}
	for _, root := range roots {
		source.V3[root.Path] = Document{
			Hash: root.fingerprint(build),
			JSON: func(context.Context) ([]byte, error) { return m.V3(root) },
		}
	}
	return source
}
