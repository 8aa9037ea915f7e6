package instances

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/spec3"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

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
			klog.ErrorS(err, "Server-side apply does not use the schema of a definition: it treats every list as atomic", "definition", whole.Name)
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

func (t lazyTypeConverter) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
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
