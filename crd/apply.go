package crd

import (
	"strings"
	"sync"

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

// lazyTypes is a type converter that is made at the first write: it takes more
// time and memory than all else that a definition needs.
type lazyTypes struct {
	build func() (managedfields.TypeConverter, error)
}

// newTypeConverter tells managed fields which fields there are, and which lists
// are sets or maps, in all versions of a definition.
func newTypeConverter(crd *apiextensionsv1.CustomResourceDefinition) managedfields.TypeConverter {
	return lazyTypes{sync.OnceValues(func() (managedfields.TypeConverter, error) {
		documents := make([]*spec3.OpenAPI, 0, len(crd.Spec.Versions))
		for _, v := range crd.Spec.Versions {
			document, err := builder.BuildOpenAPIV3(crd, v.Name, builder.Options{})
			if err != nil {
				return deduced(crd, err), nil
			}
			documents = append(documents, document)
		}
		merged, err := builder.MergeSpecsV3(documents...)
		if err != nil {
			return deduced(crd, err), nil
		}
		return managedfields.NewTypeConverter(merged.Components.Schemas, crd.Spec.PreserveUnknownFields)
	})}
}

// deduced takes types from the objects themselves: apply then works, with every
// list owned as a whole.
func deduced(crd *apiextensionsv1.CustomResourceDefinition, err error) managedfields.TypeConverter {
	klog.ErrorS(err, "Server-side apply does without the schema of a definition", "definition", crd.Name)
	return managedfields.NewDeducedTypeConverter()
}

func (l lazyTypes) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	types, err := l.build()
	if err != nil {
		return nil, err
	}
	return types.ObjectToTyped(object, options...)
}

func (l lazyTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	types, err := l.build()
	if err != nil {
		return nil, err
	}
	return types.TypedToObject(value)
}

// replicasPaths says by version where an instance has the replicas that its
// scale subresource shows, so that who owns one owns the other.
func replicasPaths(crd *apiextensionsv1.CustomResourceDefinition) managedfields.ResourcePathMappings {
	paths := managedfields.ResourcePathMappings{}
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String()
		if !hasScale(&v) {
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
