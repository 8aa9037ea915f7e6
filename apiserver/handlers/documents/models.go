package documents

import (
	"fmt"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Models are the OpenAPI definitions of the API's Go types.
type Models struct {
	version     string
	definitions common.GetOpenAPIDefinitions
	names       *openapi.DefinitionNamer
}

// NewModels makes models of generated definitions. version is the version in every
// document that is built from them. schemes know the kinds of the types. The kinds of
// apiextensions.k8s.io and apiregistration.k8s.io are always known, because some types
// are kinds of every group: documents of different servers are merged, and a merged
// document must have one definition of a type.
func NewModels(version string, definitions common.GetOpenAPIDefinitions, schemes ...*runtime.Scheme) *Models {
	everywhere := runtime.NewScheme()
	apiextensions.Install(everywhere)
	apiregistration.Install(everywhere)
	schemes = append(slices.Clone(schemes), everywhere)
	definitions = utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(definitions)
	return &Models{version: version, definitions: definitions, names: openapi.NewDefinitionNamer(schemes...)}
}

// Schemas returns a function that builds the schemas of the named types and of the types
// that these contain. Names are canonical, as
// k8s.io/kube-openapi/pkg/util.GetCanonicalTypeName gives them. The function takes some
// tens of milliseconds.
func (m *Models) Schemas(names ...string) func() (map[string]*spec.Schema, error) {
	return func() (map[string]*spec.Schema, error) {
		schemas, err := builder3.BuildOpenAPIDefinitionsForResources(m.v3Config(), names...)
		if err != nil {
			return nil, fmt.Errorf("openapi: schemas of types: %w", err)
		}
		return schemas, nil
	}
}
