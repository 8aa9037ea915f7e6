package instances

import (
	"context"
	"errors"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Source decodes one stored state of a definition, with its schemas. Every call decodes
// the bytes again; the result belongs to the caller.
//
// Invariant: whatever serves a definition's instances (schemas, validation, types of
// managed fields, Encoding) derives from one Source, and so from one spec.
type Source func() (*apiextensionsv1.CustomResourceDefinition, error)

// SourceReader reads definitions as they are stored.
type SourceReader interface {
	// Source returns a state of the definition that is not older than resourceVersion.
	// It fails with ErrReplaced if there is no definition of that name.
	Source(ctx context.Context, name, resourceVersion string) (Source, error)
	// IsReplaced reports whether the definition is another one in the watch cache, or has another SpecHash, than crd, which
	// is stripped. One that is gone was not replaced: watches still show the last states of its instances.
	IsReplaced(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (bool, error)
}

// ErrReplaced says that the stored definition has another SpecHash than the one that was
// asked about, or is gone. The caller looks the definition up again.
var ErrReplaced = errors.New("the definition has been replaced")

// ReadSource returns the source of crd, which is stripped, and what it decodes to. It
// fails with ErrReplaced if the stored definition has another SpecHash by now, or is gone.
func ReadSource(ctx context.Context, r SourceReader, crd *apiextensionsv1.CustomResourceDefinition) (Source, *apiextensionsv1.CustomResourceDefinition, error) {
	source, err := r.Source(ctx, crd.Name, crd.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	whole, err := source()
	if err != nil {
		return nil, nil, err
	}
	if whole.UID != crd.UID || whole.Generation != crd.Generation && HashSpec(whole) != crd.Annotations[SpecHash] {
		return nil, nil, ErrReplaced
	}
	return source, whole, nil
}
