package instances

import (
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/spec3"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// schemas are the structural schemas of a definition's versions. Each is made at its
// first use: most versions of most definitions are never used.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknown is spec.preserveUnknownFields, which only definitions from before
	// apiextensions v1 can have set.
	preserveUnknown bool
	byVersion       map[string]*lazy[*structuralschema.Structural]
}

// newSchemas makes the schemas of crd, which is stripped; source has them.
func newSchemas(crd *apiextensionsv1.CustomResourceDefinition, source Source) *schemas {
	s := &schemas{
		kind:            schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknown: crd.Spec.PreserveUnknownFields,
		byVersion:       map[string]*lazy[*structuralschema.Structural]{},
	}
	for _, v := range crd.Spec.Versions {
		s.byVersion[v.Name] = newLazy(func() (*structuralschema.Structural, error) {
			whole, err := source()
			if err != nil {
				return nil, err
			}
			return newStructural(DefinitionVersion(whole, v.Name), s.preserveUnknown)
		})
	}
	return s
}

// of returns the schema of a version; nil for a version without one, or an unknown
// version.
func (s *schemas) of(version string) (*structuralschema.Structural, error) {
	structural, ok := s.byVersion[version]
	if !ok {
		return nil, nil
	}
	return structural.get()
}

func (s *schemas) release() {
	for _, structural := range s.byVersion {
		structural.release()
	}
}

// NewSchema returns the schema of a version of a definition that is not stripped, as Version.Schema does.
func NewSchema(crd *apiextensionsv1.CustomResourceDefinition, version string) (*structuralschema.Structural, error) {
	return newStructural(DefinitionVersion(crd, version), crd.Spec.PreserveUnknownFields)
}

func newStructural(
	version *apiextensionsv1.CustomResourceDefinitionVersion, preserveUnknown bool,
) (*structuralschema.Structural, error) {
	validation, err := internalValidation(version)
	if err != nil || validation == nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(validation.OpenAPIV3Schema)
	if preserveUnknown {
		// Such a schema need not be structural. NewStructural returns what it can use.
		return structural, nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema of version %s: %w", version.Name, err)
	}
	// PruneDefaults changes the defaults, which NewStructural shares with the definition.
	structural = structural.DeepCopy()
	if err := structuraldefaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("defaults of version %s: %w", version.Name, err)
	}
	return structural, nil
}

// internalValidation converts a version's schema to the internal type that upstream's
// validation takes; nil for a version without a schema.
func internalValidation(
	version *apiextensionsv1.CustomResourceDefinitionVersion,
) (*apiextensions.CustomResourceValidation, error) {
	if version == nil || version.Schema == nil {
		return nil, nil
	}
	internal := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema,
		internal, nil); err != nil {
		return nil, fmt.Errorf("schema of version %s: %w", version.Name, err)
	}
	return internal, nil
}

// lazyTypeConverter is a type converter that is made at the first write: it takes more
// time and memory than all else that a definition needs.
type lazyTypeConverter struct {
	*lazy[managedfields.TypeConverter]
}

// newLazyTypeConverter makes the type converter of all versions of a definition. Managed
// fields learn from it which fields there are, and which lists are sets or maps.
func newLazyTypeConverter(source Source) lazyTypeConverter {
	return lazyTypeConverter{newLazy(func() (managedfields.TypeConverter, error) {
		whole, err := source()
		if err != nil {
			return nil, err
		}
		converter, err := newTypeConverter(whole)
		if err != nil {
			// Apply then deduces types from the objects: every list is atomic.
			klog.ErrorS(err, "Server-side apply does not use the schema of a definition: it treats every list as atomic",
				"definition", whole.Name)
			return managedfields.NewDeducedTypeConverter(), nil
		}
		return converter, nil
	})}
}

func newTypeConverter(whole *apiextensionsv1.CustomResourceDefinition) (managedfields.TypeConverter, error) {
	documents := make([]*spec3.OpenAPI, 0, len(whole.Spec.Versions))
	for _, v := range whole.Spec.Versions {
		document, err := builder.BuildOpenAPIV3(whole, v.Name, builder.Options{})
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
	merged, err := builder.MergeSpecsV3(documents...)
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(merged.Components.Schemas, whole.Spec.PreserveUnknownFields)
}

func (t lazyTypeConverter) ObjectToTyped(
	object runtime.Object, options ...typed.ValidationOptions,
) (*typed.TypedValue, error) {
	converter, err := t.get()
	if err != nil {
		return nil, err
	}
	return converter.ObjectToTyped(object, options...)
}

func (t lazyTypeConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	converter, err := t.get()
	if err != nil {
		return nil, err
	}
	return converter.TypedToObject(value)
}

// replicasPaths returns, by version, the field of an instance that its scale subresource
// shows as replicas: the manager of one is the manager of the other.
func replicasPaths(crd *apiextensionsv1.CustomResourceDefinition) managedfields.ResourcePathMappings {
	paths := managedfields.ResourcePathMappings{}
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String()
		if !HasScale(&v) {
			paths[gv] = nil
			continue
		}
		path := fieldpath.Path{}
		for name := range strings.SplitSeq(strings.TrimPrefix(v.Subresources.Scale.SpecReplicasPath, "."), ".") {
			path = append(path, fieldpath.PathElement{FieldName: &name})
		}
		paths[gv] = path
	}
	return paths
}
