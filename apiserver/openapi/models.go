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
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Models are the OpenAPI definitions of the API's Go types.
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
	// types has the typed.ParseableType of each schema.GroupVersionKind that was
	// converted.
	types sync.Map
}

func (l *lazyConverter) ObjectToTyped(object runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	c, err := l.build()
	if err != nil {
		return nil, err
	}
	if _, free := object.(runtime.Unstructured); free || !slices.Contains(opts, typed.AllowDuplicates) {
		return c.ObjectToTyped(object, opts...)
	}
	// A Go value of the kind is of its type, so that only the first is validated:
	// what could be wrong with another are duplicates, which are allowed, and
	// missing keys, which the comparison that follows reports too.
	kind := object.GetObjectKind().GroupVersionKind()
	if known, ok := l.types.Load(kind); ok {
		of := known.(typed.ParseableType)
		v, err := value.NewValueReflect(object)
		if err != nil {
			return nil, err
		}
		return typed.AsTypedUnvalidated(objectValue{v, object}, of.Schema, of.TypeRef), nil //nolint:staticcheck // deprecated since validation is cheap; it is not
	}
	converted, err := c.ObjectToTyped(object, opts...)
	if err == nil {
		l.types.Store(kind, typed.ParseableType{Schema: converted.Schema(), TypeRef: converted.TypeRef()})
	}
	return converted, err
}

// objectValue is the value of a Go object, which remembers the object.
type objectValue struct {
	value.Value
	object runtime.Object
}

// TypedToObject returns the object that a value is of, if it is of one: upstream asks
// for it for every manager of an object's fields, mostly to see that it has the version
// that the manager used.
func (l *lazyConverter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	if of, ok := v.AsValue().(objectValue); ok {
		return of.object, nil
	}
	c, err := l.build()
	if err != nil {
		return nil, err
	}
	return c.TypedToObject(v)
}
