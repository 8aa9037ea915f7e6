package documents

import (
	"context"
	"errors"
)

// A Source contributes to the documents: the built-in groups, the custom resources of one
// CustomResourceDefinition, or one aggregated API server.
type Source struct {
	// V2 calls add with the source's parts of the OpenAPI v2 document, one after the other;
	// nil if it has none. Each part is a document as kube-openapi encodes it. V2 must not
	// wait for the network, because every request for the document waits for it. If it
	// returns an error, the document is sent without the parts that are missing and not
	// kept.
	V2 func(ctx context.Context, add func(document []byte) error) error
	// V2Hash changes whenever the part changes. Set drops the OpenAPI v2 document if
	// the hash is another one or empty.
	V2Hash string
	// V3 has the OpenAPI v3 documents by path ("apis/apps/v1").
	V3 map[string]Document
}

// A Document is one OpenAPI v3 document.
type Document struct {
	// Hash changes whenever the document does.
	Hash string
	// JSON builds the document. Like Source.V2, it must not wait for the network and
	// may return ErrPartial together with a result.
	JSON func(context.Context) ([]byte, error)
}

// ErrPartial is returned together with a document, or a part of one, that lacks something
// which could not be read now. The Service sends such a document and does not keep it.
var ErrPartial = errors.New("a part of the document is missing for now")

// Source returns a source with the given roots. build is the result of BuildIdentity.
func (m *Models) Source(roots []Root, build string) Source {
	source := Source{
		V2: func(_ context.Context, add func(document []byte) error) error {
			document, err := m.V2(roots)
			if err != nil {
				return err
			}
			return add(document)
		},
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
