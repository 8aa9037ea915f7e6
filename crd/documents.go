package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/documents"
	"byre/crd/instances"
)

// discoveryPublisher keeps discovery in line with the definitions that the resolver
// knows. One goroutine calls it.
type discoveryPublisher struct {
	resolver *resolver
	registry *documents.Discovery
	// published has what discovery lists now, by group and version.
	published map[string]map[string][]metav1.APIResource
}

func newDiscoveryPublisher(r *resolver, registry *documents.Discovery) *discoveryPublisher {
	return &discoveryPublisher{resolver: r, registry: registry, published: map[string]map[string][]metav1.APIResource{}}
}

// update publishes what the definitions of a group serve now.
func (p *discoveryPublisher) update(group string) error {
	resources := map[string][]metav1.APIResource{}
	for _, crd := range p.resolver.listGroup(group) {
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			if !v.Served {
				continue
			}
			// As upstream does, a version is listed before a resource of it is established.
			served := resources[v.Name]
			if instances.IsEstablished(crd) {
				served = append(served, instances.Resources(crd, v)...)
			}
			resources[v.Name] = served
		}
	}
	last := p.published[group]
	for version, served := range resources {
		before, listed := last[version]
		if listed && apiequality.Semantic.DeepEqual(before, served) && (before == nil) == (served == nil) {
			continue
		}
		gv := schema.GroupVersion{Group: group, Version: version}
		var aggregated []apidiscoveryv2.APIResourceDiscovery
		if served != nil {
			var err error
			if aggregated, err = endpoints.ConvertGroupVersionIntoToDiscovery(withKinds(gv, served)); err != nil {
				return err
			}
		}
		if err := p.registry.Add(documents.DiscoveryVersion{
			GroupVersion:        gv,
			Origin:              documents.Custom,
			Resources:           served,
			AggregatedResources: aggregated,
		}); err != nil {
			return err
		}
	}
	for version := range last {
		if _, ok := resources[version]; !ok {
			p.registry.Remove(schema.GroupVersion{Group: group, Version: version}, documents.Custom)
		}
	}
	if p.published[group] = resources; len(resources) == 0 {
		delete(p.published, group)
	}
	return nil
}

// withKinds fills in the group and version of each kind. The aggregated document has
// them for custom resources, the legacy documents do not.
func withKinds(gv schema.GroupVersion, resources []metav1.APIResource) []metav1.APIResource {
	resources = slices.Clone(resources)
	for i := range resources {
		if r := &resources[i]; r.Version == "" {
			r.Group, r.Version = gv.Group, gv.Version
		}
	}
	return resources
}

// openAPISource is the name of the custom resources' source in documents.OpenAPI.
const openAPISource = "crd-instances"

// openAPIPublisher keeps the OpenAPI documents in line with the definitions that the
// resolver knows. It builds nothing: documents.OpenAPI builds a document when a client asks
// for it. One goroutine calls it.
type openAPIPublisher struct {
	resolver *resolver
	service  *documents.OpenAPI
	// build is the result of documents.BuildIdentity.
	build string
	specs *specCache
	// groups has the established definitions of each group version, by group.
	groups map[string]map[schema.GroupVersion][]specInput
	// published is the source that the service has.
	published documents.Source
}

func newOpenAPIPublisher(
	r *resolver, service *documents.OpenAPI, build string, sources instances.SourceReader,
) *openAPIPublisher {
	return &openAPIPublisher{
		resolver: r,
		service:  service,
		build:    build,
		specs:    newSpecCache(sources),
		groups:   map[string]map[schema.GroupVersion][]specInput{},
	}
}

// update reads the established definitions of a group.
func (p *openAPIPublisher) update(group string) {
	versions := map[schema.GroupVersion][]specInput{}
	for _, crd := range p.resolver.listGroup(group) {
		if !instances.IsEstablished(crd) {
			continue
		}
		d := newSpecInput(crd)
		for _, v := range crd.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: group, Version: v.Name}
				versions[gv] = append(versions[gv], d)
			}
		}
	}
	if p.groups[group] = versions; len(versions) == 0 {
		delete(p.groups, group)
	}
}

// publish gives the service the definitions that were updated, if its documents differ
// from the published ones.
func (p *openAPIPublisher) publish() {
	if len(p.groups) == 0 {
		p.service.Remove(openAPISource)
		p.published = documents.Source{}
		p.specs.retain(nil)
		return
	}
	source := documents.Source{V3: map[string]documents.Document{}}
	used := map[string]bool{}
	var all []specInput
	var hashes []string
	for _, group := range slices.Sorted(maps.Keys(p.groups)) {
		for gv, definitions := range p.groups[group] {
			hash := p.hash(gv, definitions)
			hashes = append(hashes, hash)
			source.V3["apis/"+gv.Group+"/"+gv.Version] = documents.Document{
				Hash: hash,
				JSON: func(ctx context.Context) ([]byte, error) { return p.specs.mergedV3(ctx, gv, definitions) },
			}
			for _, d := range definitions {
				if !used[d.hash] {
					used[d.hash] = true
					all = append(all, d)
				}
			}
		}
	}
	slices.Sort(hashes)
	source.V2Hash = documents.Hash(strings.Join(hashes, "\n"))
	source.V2 = func(ctx context.Context, add func([]byte) error) error { return p.specs.addV2(ctx, all, add) }
	if source.V2Hash == p.published.V2Hash {
		return // only conditions have changed
	}
	p.published = source
	p.specs.retain(used)
	p.service.Set(openAPISource, source)
}

// hash identifies the document of a group version by all that it depends on: the
// program, its feature gates, and the definitions.
func (p *openAPIPublisher) hash(gv schema.GroupVersion, definitions []specInput) string {
	var of strings.Builder
	fmt.Fprintf(&of, "%s\n%s\n%v\n", p.build, gv, instances.SelectableFieldsEnabled())
	for _, d := range definitions {
		of.WriteString(d.hash + "\n")
	}
	return documents.Hash(of.String())
}

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
func (c *specCache) get(
	ctx context.Context, d specInput, key specKey, build func(*apiextensionsv1.CustomResourceDefinition) (any, error),
) ([]byte, error) {
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
		text, err := c.get(ctx, d, specKey{d.hash, gv.Version},
			func(crd *apiextensionsv1.CustomResourceDefinition) (any, error) {
				return builder.BuildOpenAPIV3(crd, gv.Version,
					builder.Options{IncludeSelectableFields: instances.SelectableFieldsEnabled()})
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
			klog.FromContext(ctx).Error(err, "The OpenAPI document is without a definition", "definition", d.crd.Name, "path",
				gv)
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
	klog.FromContext(ctx).V(2).Info("A definition is missing from the OpenAPI documents for now", "definition", d.crd.Name,
		"err", err)
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
		part, err := builder.BuildOpenAPIV2(crd, v.Name,
			builder.Options{V2: true, IncludeSelectableFields: instances.SelectableFieldsEnabled()})
		if err != nil {
			return nil, err
		}
		// As upstream does: OpenAPI v2 publishes no defaults.
		part.Definitions = handler.PruneDefaults(part.Definitions)
		parts = append(parts, part)
	}
	return builder.MergeSpecs(&spec.Swagger{}, parts...)
}
