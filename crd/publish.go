package crd

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/openapi"
)

// sourceName is under what custom resources are in the OpenAPI documents.
const sourceName = "crd-instances"

// publisher keeps the OpenAPI documents at what the table has. Nothing is built
// here: a document is, when it is asked for, from the definitions as they are
// then.
type publisher struct {
	table   *table
	service *openapi.Service
	// groups has, for each group with established definitions, what its
	// documents are told apart by.
	groups map[string]map[schema.GroupVersion]string
}

// note remembers what there is of a group now.
func (p *publisher) note(group string) {
	hashes := map[schema.GroupVersion]string{}
	for _, crd := range established(p.table.group(group)) {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: group, Version: v.Name}
				hashes[gv] += fmt.Sprintf("%s,%d\n", crd.UID, crd.Generation)
			}
		}
	}
	if p.groups[group] = hashes; len(hashes) == 0 {
		delete(p.groups, group)
	}
}

// publish offers what was noted.
func (p *publisher) publish() {
	if len(p.groups) == 0 {
		p.service.Remove(sourceName)
		return
	}
	source := openapi.Source{V3: map[string]openapi.Document{}}
	var groups []string
	for group, versions := range p.groups {
		groups = append(groups, group)
		for gv, identity := range versions {
			source.V3["apis/"+gv.Group+"/"+gv.Version] = openapi.Document{
				Hash: fmt.Sprintf("%X", sha512.Sum512([]byte(identity))),
				JSON: func(ctx context.Context) ([]byte, error) { return p.version3(ctx, gv) },
			}
		}
	}
	slices.Sort(groups)
	source.V2 = func(ctx context.Context) (*spec.Swagger, error) { return p.version2(ctx, groups) }
	p.service.Set(sourceName, source)
}

// version3 is the document of one group version.
func (p *publisher) version3(ctx context.Context, gv schema.GroupVersion) ([]byte, error) {
	var parts []*spec3.OpenAPI
	for _, crd := range established(p.table.group(gv.Group)) {
		if !apihelpers.HasServedCRDVersion(crd, gv.Version) {
			continue
		}
		_, whole, err := p.table.shared.sourceOf(ctx, crd)
		if errors.Is(err, errReplaced) {
			continue // and so will be the document
		}
		if err != nil {
			return nil, err
		}
		part, err := builder.BuildOpenAPIV3(whole, gv.Version, builder.Options{IncludeSelectableFields: selectableFields()})
		if err != nil {
			return nil, fmt.Errorf("crd: OpenAPI of %s: %w", crd.Name, err)
		}
		parts = append(parts, part)
	}
	document, err := builder.MergeSpecsV3(parts...)
	if err != nil {
		return nil, fmt.Errorf("crd: OpenAPI of %s: %w", gv, err)
	}
	return json.Marshal(document)
}

// version2 is the part of the one document that custom resources make up.
func (p *publisher) version2(ctx context.Context, groups []string) (*spec.Swagger, error) {
	whole := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Definitions: spec.Definitions{},
		Parameters:  map[string]spec.Parameter{},
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
	}}
	var mu sync.Mutex // of whole
	var builders errgroup.Group
	builders.SetLimit(runtime.GOMAXPROCS(0))
	for _, group := range groups {
		for _, crd := range established(p.table.group(group)) {
			builders.Go(func() error {
				_, full, err := p.table.shared.sourceOf(ctx, crd)
				if errors.Is(err, errReplaced) {
					return nil // and so will be the document
				}
				if err == nil {
					err = addVersion2(&mu, whole, full)
				}
				if err != nil {
					return fmt.Errorf("crd: OpenAPI of %s: %w", crd.Name, err)
				}
				return nil
			})
		}
	}
	return whole, builders.Wait()
}

// addVersion2 adds a definition's part to the whole, which mu guards.
func addVersion2(mu *sync.Mutex, whole *spec.Swagger, crd *apiextensionsv1.CustomResourceDefinition) error {
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		part, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: selectableFields()})
		if err != nil {
			return err
		}
		// No two definitions have a path or a kind in common; the types that all
		// refer to are the same everywhere. Version 2 never had defaults.
		definitions := handler.PruneDefaults(part.Definitions)
		mu.Lock()
		maps.Copy(whole.Definitions, definitions)
		maps.Copy(whole.Parameters, part.Parameters)
		maps.Copy(whole.Paths.Paths, part.Paths.Paths)
		mu.Unlock()
	}
	return nil
}

func established(definitions []*apiextensionsv1.CustomResourceDefinition) []*apiextensionsv1.CustomResourceDefinition {
	return slices.DeleteFunc(definitions, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
}

func selectableFields() bool {
	return utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors)
}
