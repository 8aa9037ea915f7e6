package documents

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Model is a struct that is an object, or part of one. The tag description of a field is its description, and the tag openapi
// is "optional" for one that is always written and need not be given.
type Model struct {
	Type        interface{ OpenAPIModelName() string }
	Description string
}

// typeMeta are the properties of every object and list.
type typeMeta struct {
	APIVersion string `json:"apiVersion" description:"APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"`
	Kind       string `json:"kind" description:"Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"`
}

// Definitions returns what upstream's generator makes of models.
func Definitions(ref common.ReferenceCallback, models ...Model) map[string]common.OpenAPIDefinition {
	all := map[string]common.OpenAPIDefinition{}
	for _, m := range models {
		d := common.OpenAPIDefinition{}
		d.Schema.Description, d.Schema.Type, d.Schema.Properties = m.Description, []string{"object"}, map[string]spec.Schema{}
		for f := range reflect.TypeOf(m.Type).Fields() {
			if f.Type == reflect.TypeFor[metav1.TypeMeta]() {
				for f := range reflect.TypeFor[typeMeta]().Fields() {
					d.Schema.Properties[f.Tag.Get("json")] = property(f, ref, nil)
				}
				continue
			}
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			d.Schema.Properties[name] = property(f, ref, &d.Dependencies)
			if options == "" && f.Tag.Get("openapi") != "optional" {
				d.Schema.Required = append(d.Schema.Required, name)
			}
		}
		all[m.Type.OpenAPIModelName()] = d
	}
	return all
}

func property(f reflect.StructField, ref common.ReferenceCallback, uses *[]string) spec.Schema {
	s := schemaOf(f.Type, ref, uses)
	s.Description = f.Tag.Get("description")
	return s
}

// schemaOf returns the schema of a type, and adds the models that it refers to. A list is replaced as a whole.
func schemaOf(t reflect.Type, ref common.ReferenceCallback, uses *[]string) (s spec.Schema) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if model, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		*uses = append(*uses, model.OpenAPIModelName())
		s.Ref = ref(model.OpenAPIModelName())
		return s
	}
	switch t.Kind() {
	case reflect.String:
		s.Type = []string{"string"}
	case reflect.Bool:
		s.Type = []string{"boolean"}
	case reflect.Int32, reflect.Int64:
		s.Type, s.Format = []string{"integer"}, t.Kind().String()
	case reflect.Slice:
		if t == reflect.TypeFor[json.RawMessage]() {
			return s // any JSON
		}
		item := schemaOf(t.Elem(), ref, uses)
		s.Type, s.Items = []string{"array"}, &spec.SchemaOrArray{Schema: &item}
		s.AddExtension("x-kubernetes-list-type", "atomic")
	}
	return s
}
