package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/documents"
	"byre/crd/instances"
)

// specInput is a definition whose OpenAPI spec is in the documents.
type specInput struct {
	crd *apiextensionsv1.CustomResourceDefinition // stripped
	// hash changes whenever the spec does.
	hash string
}

func newSpecInput(crd *apiextensionsv1.CustomResourceDefinition) specInput {
	return specInput{crd, hashInput(crd, crd.Annotations[instances.OpenAPIHash])}
}

// hashInput makes a specInput's hash of a definition and its instances.OpenAPIHash.
func hashInput(crd *apiextensionsv1.CustomResourceDefinition, openAPI string) string {
	return instances.Hash(crd.Name, openAPI, crd.Status.AcceptedNames)
}

// specCache has the OpenAPI specs of definitions, compressed. A spec is built when a
// document that contains it is asked for; a change of one definition builds the specs of
// no other. It is safe for concurrent use.
type specCache struct {
	sources instances.SourceReader

	mu    sync.Mutex
	byKey map[specKey][]byte // nil for a spec that cannot be built
}

// specKey names a spec by what it depends on.
type specKey struct {
	hash    string // of the specInput
	version string // "" for the spec of all versions, in OpenAPI v2
}

func newSpecCache(sources instances.SourceReader) *specCache {
	return &specCache{sources: sources, byKey: map[specKey][]byte{}}
}

// retain drops all specs but those of the given hashes.
func (c *specCache) retain(hashes map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.byKey, func(key specKey, _ []byte) bool { return !hashes[key.hash] })
}

// get returns a spec as JSON. It builds the spec if the cache does not have it. It logs
// the failure of a build and returns nil: the documents are then without this definition
// only. It returns an error if the definition cannot be read now.
func (c *specCache) get(ctx context.Context, d specInput, key specKey, build func(*apiextensionsv1.CustomResourceDefinition) (any, error)) ([]byte, error) {
	c.mu.Lock()
	packed, ok := c.byKey[key]
	c.mu.Unlock()
	if ok {
		if packed == nil {
			return nil, nil
		}
		return documents.Decompress(packed)
	}
	whole, err := c.read(ctx, d)
	if err != nil {
		return nil, err
	}
	var text []byte
	part, err := build(whole)
	if err == nil {
		text, err = json.Marshal(part)
	}
	if err == nil {
		packed, err = documents.Compress(text)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The OpenAPI documents are without a definition", "definition", d.crd.Name)
		text, packed = nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byKey[key] = packed
	return text, nil
}

// read returns a definition with its schemas. It fails with instances.ErrReplaced if the
// stored definition has another spec by now, or is gone.
func (c *specCache) read(ctx context.Context, d specInput) (*apiextensionsv1.CustomResourceDefinition, error) {
	source, err := c.sources.Source(ctx, d.crd.Name, d.crd.ResourceVersion)
	if err != nil {
		return nil, err
	}
	whole, err := source()
	if err == nil && hashInput(whole, instances.HashOpenAPI(whole)) != d.hash {
		err = instances.ErrReplaced
	}
	return whole, err
}

// mergedV3 is the OpenAPI v3 document of a group version.
func (c *specCache) mergedV3(ctx context.Context, gv schema.GroupVersion, definitions []specInput) ([]byte, error) {
	whole, partial := &spec3.OpenAPI{}, error(nil)
	for _, d := range definitions {
		text, err := c.get(ctx, d, specKey{d.hash, gv.Version}, func(crd *apiextensionsv1.CustomResourceDefinition) (any, error) {
			return builder.BuildOpenAPIV3(crd, gv.Version, builder.Options{IncludeSelectableFields: instances.SelectableFieldsEnabled()})
		})
		if err != nil {
			partial = addMissing(ctx, partial, d, err)
		}
		if text == nil {
			continue
		}
		part := &spec3.OpenAPI{}
		if err := json.Unmarshal(text, part); err != nil {
			return nil, err
		}
		merged, err := builder.MergeSpecsV3(whole, part)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The OpenAPI document is without a definition", "definition", d.crd.Name, "path", gv)
			continue
		}
		merged.Version, merged.Info = part.Version, part.Info
		whole = merged
	}
	text, err := json.Marshal(whole)
	return text, errors.Join(err, partial)
}

// addMissing adds a definition that could not be read to the error of a partial document.
func addMissing(ctx context.Context, partial error, d specInput, err error) error {
	klog.FromContext(ctx).V(2).Info("A definition is missing from the OpenAPI documents for now", "definition", d.crd.Name, "err", err)
	return errors.Join(partial, fmt.Errorf("crd: %s: %w", d.crd.Name, documents.ErrPartial))
}

// addV2 adds the OpenAPI v2 spec of each definition to a document.
func (c *specCache) addV2(ctx context.Context, definitions []specInput, add func(document []byte) error) error {
	var partial error
	var mu sync.Mutex // guards add and partial
	var builders errgroup.Group
	builders.SetLimit(runtime.GOMAXPROCS(0))
	for _, d := range definitions {
		builders.Go(func() error {
			text, err := c.get(ctx, d, specKey{hash: d.hash}, buildV2)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				partial = addMissing(ctx, partial, d, err)
			}
			if text == nil {
				return nil
			}
			return add(text)
		})
	}
	return errors.Join(builders.Wait(), partial)
}

// buildV2 builds the OpenAPI v2 spec of a definition in all its served versions.
func buildV2(crd *apiextensionsv1.CustomResourceDefinition) (any, error) {
	var parts []*spec.Swagger
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		part, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: instances.SelectableFieldsEnabled()})
		if err != nil {
			return nil, err
		}
		// As upstream does: OpenAPI v2 publishes no defaults.
		part.Definitions = handler.PruneDefaults(part.Definitions)
		parts = append(parts, part)
	}
	return builder.MergeSpecs(&spec.Swagger{}, parts...)
}
