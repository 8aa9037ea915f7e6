package handlers

import (
	"reflect"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

// queryParams returns the query parameters of an options type: one for each field that has
// a JSON name and is neither a struct nor an interface.
func queryParams(options runtime.Object, except ...string) []*restful.Parameter {
	var docs map[string]string
	if documented, ok := options.(interface{ SwaggerDoc() map[string]string }); ok {
		docs = documented.SwaggerDoc()
	}
	var params []*restful.Parameter
	for _, field := range reflect.VisibleFields(reflect.TypeOf(options).Elem()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if len(field.Index) > 1 || name == "" || slices.Contains(except, name) || !isParam(field.Type) {
			continue
		}
		params = append(params, restful.QueryParameter(name, docs[name]).DataType(jsonType(field.Type)))
	}
	return params
}

func isParam(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() != reflect.Interface && t.Kind() != reflect.Struct
}

// jsonType returns the JSON type of a parameter of Go type t. For a slice it is the type of
// an element, because a client gives several values by repeating the parameter.
func jsonType(t reflect.Type) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return "string"
	}
}
