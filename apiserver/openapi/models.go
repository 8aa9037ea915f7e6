package openapi

import (
	"fmt"
	"slices"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Models are the schemas of the Go types that the API is made of.
type Models struct {
	version     string
	definitions common.GetOpenAPIDefinitions
	names       *openapi.DefinitionNamer
}

// NewModels makes models of generated definitions. The version heads every
// document made of them; the schemes say of which kind each type is. The kinds of apiextensions.k8s.io and
// apiregistration.k8s.io are always known: some types are of a kind in every
// group, and documents made by different servers are merged, in which a type
// must have one definition.
func NewModels(version string, definitions common.GetOpenAPIDefinitions, schemes ...*runtime.Scheme) *Models {
	everywhere := runtime.NewScheme()
	apiextensions.Install(everywhere)
	apiregistration.Install(everywhere)
	schemes = append(slices.Clone(schemes), everywhere)
	definitions = utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(definitions)
	return &Models{version: version, definitions: definitions, names: openapi.NewDefinitionNamer(schemes...)}
}

// TypeConverter returns a converter for managed fields that knows the types
// named, and what they are made of. Names are canonical, as
// k8s.io/kube-openapi/pkg/util.GetCanonicalTypeName gives them.
//
// It is built by its first use: that takes some tens of milliseconds, which a
// server that is starting, or that is only read from, does not spend.
func (m *Models) TypeConverter(names ...string) managedfields.TypeConverter {
	return &lazyConverter{build: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		schemas, err := builder3.BuildOpenAPIDefinitionsForResources(m.v3Config(), names...)
		if err != nil {
			return nil, fmt.Errorf("openapi: schemas for managed fields: %w", err)
		}
		return managedfields.NewTypeConverter(schemas, false)
	})}
}

type lazyConverter struct {
	build func() (managedfields.TypeConverter, error)
}

func (l *lazyConverter) ObjectToTyped(object runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	c, err := l.build()
	if err != nil {
		return nil, err
	}
	return c.ObjectToTyped(object, opts...)
}

func (l *lazyConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	c, err := l.build()
	if err != nil {
		return nil, err
	}
	return c.TypedToObject(value)
}
