package crd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/openapi"
)

// sourceName is under what custom resources are in the OpenAPI documents.
const sourceName = "crd-instances"

// publisher keeps the OpenAPI documents at what the table has. Nothing is built
// here: a document is, when it is asked for, from the definitions that it was
// published for.
type publisher struct {
	table   *table
	service *openapi.Service
	// build identifies the program; see openapi.BuildIdentity.
	build string
	parts *documentParts
	// groups has the established definitions of each group version, by group.
	groups map[string]map[schema.GroupVersion][]described
	// published is what was published last.
	published openapi.Source
}

// described is what a document says of a definition.
type described struct {
	crd *apiextensionsv1.CustomResourceDefinition // stripped
	// hash changes whenever what the documents say of the definition does.
	hash string
}

func describedOf(crd *apiextensionsv1.CustomResourceDefinition) described {
	return described{crd, describedHash(crd, crd.Annotations[documentHash])}
}

// describedHash is of a definition and its documentHash.
func describedHash(crd *apiextensionsv1.CustomResourceDefinition, document string) string {
	return hashOf(crd.Name, document, crd.Status.AcceptedNames)
}

// note remembers what there is of a group now.
func (p *publisher) note(group string) {
	versions := map[schema.GroupVersion][]described{}
	for _, crd := range established(p.table.group(group)) {
		d := describedOf(crd)
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

// publish offers what was noted, if that is something else than before.
func (p *publisher) publish() {
	if len(p.groups) == 0 {
		p.service.Remove(sourceName)
		p.published = openapi.Source{}
		p.parts.keep(nil)
		return
	}
	source := openapi.Source{V3: map[string]openapi.Document{}}
	used := map[string]bool{}
	var all []described
	var hashes []string
	for _, group := range slices.Sorted(maps.Keys(p.groups)) {
		for gv, definitions := range p.groups[group] {
			hash := p.hash(gv, definitions)
			hashes = append(hashes, hash)
			source.V3["apis/"+gv.Group+"/"+gv.Version] = openapi.Document{
				Hash: hash,
				JSON: func(ctx context.Context) ([]byte, error) { return p.parts.version3(ctx, gv, definitions) },
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
	source.V2Hash = openapi.Hash(strings.Join(hashes, "\n"))
	source.V2 = func(ctx context.Context) (*spec.Swagger, error) { return p.parts.version2(ctx, all) }
	if source.V2Hash == p.published.V2Hash {
		return // a change of conditions
	}
	p.published = source
	p.parts.keep(used)
	p.service.Set(sourceName, source)
}

// hash identifies the document of a group version: it is made by this program, as
// it is configured, of these definitions.
func (p *publisher) hash(gv schema.GroupVersion, definitions []described) string {
	var of strings.Builder
	fmt.Fprintf(&of, "%s\n%s\n%v\n", p.build, gv, selectableFields())
	for _, d := range definitions {
		of.WriteString(d.hash + "\n")
	}
	return openapi.Hash(of.String())
}

func established(definitions []*apiextensionsv1.CustomResourceDefinition) []*apiextensionsv1.CustomResourceDefinition {
	return slices.DeleteFunc(definitions, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
}

func selectableFields() bool {
	return utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors)
}
