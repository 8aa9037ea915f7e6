package crd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/handlers/documents"
	"byre/crd/instances"
)

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

func newOpenAPIPublisher(r *resolver, service *documents.OpenAPI, build string, sources instances.SourceReader) *openAPIPublisher {
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
