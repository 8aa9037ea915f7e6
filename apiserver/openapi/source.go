package openapi

import (
	"context"
	"errors"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A Source is part of what the API's documents say: the built-in groups, the
// custom resources of one definition, one aggregated server.
type Source struct {
	// V2 makes its part of the document of version 2, of what is at hand: all who
	// ask for that document wait meanwhile. Nil if it has none. The result belongs to
	// the caller. It may come with an error that is ErrPartial.
	V2 func(context.Context) (*spec.Swagger, error)
	// V2Hash changes whenever the part does. The document is built again when the
	// source is set with another one, or with none ("").
	V2Hash string
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

// ErrPartial comes with a document, or a part of one, in which something is missing
// that could not be read now. It is sent to who asked, and not kept.
var ErrPartial = errors.New("something is missing for now")

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
