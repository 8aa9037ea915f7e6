package openapi

import (
	"maps"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Join returns a function that returns the definitions of several.
func Join(all ...common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		joined := map[string]common.OpenAPIDefinition{}
		for _, definitions := range all {
			maps.Copy(joined, definitions(ref))
		}
		return joined
	}
}

// TypeMeta are the properties of every object and list.
func TypeMeta() map[string]spec.Schema {
	return map[string]spec.Schema{
		"apiVersion": Property("string", "", "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"),
		"kind":       Property("string", "", "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"),
	}
}

// Definition returns what upstream's generator makes of a struct. uses are the models that its properties refer to.
func Definition(description string, properties map[string]spec.Schema, required []string, uses ...string) common.OpenAPIDefinition {
	return common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"object"}, Properties: properties, Required: required,
		}},
		Dependencies: uses,
	}
}

// Property is a field of a scalar type.
func Property(kind, format, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{kind}, Format: format}}
}

// Reference is a field of the type of another model.
func Reference(ref common.ReferenceCallback, model, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Ref: ref(model)}}
}

// List is a field that is a list of another model, which is replaced as a whole.
func List(ref common.ReferenceCallback, model, description string) spec.Schema {
	return Items(spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(model)}}, description)
}

// Items is a field that is a list of items, which is replaced as a whole.
func Items(item spec.Schema, description string) spec.Schema {
	return spec.Schema{
		VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-list-type": "atomic"}},
		SchemaProps:      spec.SchemaProps{Description: description, Type: []string{"array"}, Items: &spec.SchemaOrArray{Schema: &item}},
	}
}
