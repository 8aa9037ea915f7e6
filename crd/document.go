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

	"byre/apiserver/openapi"
)

// documentParts are the parts that definitions have in the OpenAPI documents. They
// are built when a document is asked for, and kept compressed: a change of one
// definition builds the parts of no other. It is safe for concurrent use.
type documentParts struct {
	shared *shared

	mu   sync.Mutex
	kept map[partKey][]byte // nil for what can't be built
}

// partKey names a part by what it depends on.
type partKey struct {
	hash    string // described.hash
	version string // "" for all, in version 2 of OpenAPI
}

// keep gives up the parts of all definitions but those with these hashes.
func (p *documentParts) keep(hashes map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.kept, func(key partKey, _ []byte) bool { return !hashes[key.hash] })
}

// part returns a definition's part as JSON, built now if it was not before. It is nil
// if it can't be built: that is logged, and hides no other. An error is of the
// reading of the definition, and passes.
func (p *documentParts) part(ctx context.Context, d described, key partKey, build func(*apiextensionsv1.CustomResourceDefinition) (any, error)) ([]byte, error) {
	p.mu.Lock()
	packed, ok := p.kept[key]
	p.mu.Unlock()
	if ok {
		if packed == nil {
			return nil, nil
		}
		return openapi.Unpack(packed)
	}
	whole, err := p.read(ctx, d)
	if err != nil {
		return nil, err
	}
	var text []byte
	part, err := build(whole)
	if err == nil {
		text, err = json.Marshal(part)
	}
	if err == nil {
		packed, err = openapi.Pack(text)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The OpenAPI documents are without a definition", "definition", d.crd.Name)
		text, packed = nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept[key] = packed
	return text, nil
}

// read returns a definition with its schemas. It fails with errReplaced if the
// documents would say something else of it by now, or if it is gone.
func (p *documentParts) read(ctx context.Context, d described) (*apiextensionsv1.CustomResourceDefinition, error) {
	from, err := p.shared.read(ctx, d.crd.Name, d.crd.ResourceVersion)
	if err != nil {
		return nil, err
	}
	whole, err := from.definition()
	if err == nil && describedHash(whole, hashDocument(whole)) != d.hash {
		err = errReplaced
	}
	return whole, err
}

// version3 is the document of one group version.
func (p *documentParts) version3(ctx context.Context, gv schema.GroupVersion, definitions []described) ([]byte, error) {
	whole, partial := &spec3.OpenAPI{}, error(nil)
	for _, d := range definitions {
		text, err := p.part(ctx, d, partKey{d.hash, gv.Version}, func(crd *apiextensionsv1.CustomResourceDefinition) (any, error) {
			return builder.BuildOpenAPIV3(crd, gv.Version, builder.Options{IncludeSelectableFields: selectableFields()})
		})
		if err != nil {
			partial = missing(ctx, partial, d, err)
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

// missing notes that a definition could not be read.
func missing(ctx context.Context, partial error, d described, err error) error {
	klog.FromContext(ctx).V(2).Info("A definition is missing from the OpenAPI documents for now", "definition", d.crd.Name, "err", err)
	return errors.Join(partial, fmt.Errorf("crd: %s: %w", d.crd.Name, openapi.ErrPartial))
}

// version2 is the part of the one document that custom resources make up.
func (p *documentParts) version2(ctx context.Context, definitions []described) (*spec.Swagger, error) {
	whole := emptyVersion2()
	var partial error
	var mu sync.Mutex // of both
	var builders errgroup.Group
	builders.SetLimit(runtime.GOMAXPROCS(0))
	for _, d := range definitions {
		builders.Go(func() error {
			text, err := p.part(ctx, d, partKey{hash: d.hash}, buildVersion2)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				partial = missing(ctx, partial, d, err)
			}
			if text == nil {
				return nil
			}
			part := emptyVersion2()
			if err := part.UnmarshalJSON(text); err != nil {
				return err
			}
			addVersion2(whole, part)
			return nil
		})
	}
	return whole, errors.Join(builders.Wait(), partial)
}

func emptyVersion2() *spec.Swagger {
	return &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Definitions: spec.Definitions{},
		Parameters:  map[string]spec.Parameter{},
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
	}}
}

// buildVersion2 is what a definition has in version 2, in all its served versions.
func buildVersion2(crd *apiextensionsv1.CustomResourceDefinition) (any, error) {
	whole := emptyVersion2()
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		part, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: selectableFields()})
		if err != nil {
			return nil, err
		}
		// Version 2 never had defaults.
		part.Definitions = handler.PruneDefaults(part.Definitions)
		addVersion2(whole, part)
	}
	return whole, nil
}

// addVersion2 adds a part to the whole. No two definitions have a path or a kind in
// common; the types that all refer to are the same everywhere.
func addVersion2(whole, part *spec.Swagger) {
	maps.Copy(whole.Definitions, part.Definitions)
	maps.Copy(whole.Parameters, part.Parameters)
	maps.Copy(whole.Paths.Paths, part.Paths.Paths)
}
