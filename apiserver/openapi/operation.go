package openapi

import (
	"k8s.io/kube-openapi/pkg/common"
)

// An Operation describes one method at one path.
type Operation struct {
	// Method is the HTTP method.
	Method string
	// Path is the absolute path, with parameters in braces. A parameter that
	// takes the rest of the path comes last and ends in ":*".
	Path string
	// Name is what the operation does and to what ("listNamespacedPod"). Names
	// begin with a verb and are unique together with the group version.
	Name string
	// Doc is one sentence for people.
	Doc string
	// Params are the path, query and body parameters.
	Params []Param
	// Consumes and Produces are media types.
	Consumes, Produces []string
	// Request and Response are values of the types that the bodies have; nil
	// where there is none.
	Request, Response any
	// Responses are the answers by status code.
	Responses []Response
	// Extensions are added to the operation; keys begin with "x-kubernetes-".
	Extensions map[string]any
}

// A Param is a parameter of an Operation.
type Param struct {
	Name, Description string
	// Type is the JSON type, unused for a body.
	Type     string
	In       common.ParameterKind
	Required bool
}

// A Response is the answer that comes with a status code.
type Response struct {
	Code    int
	Message string
	// Model is a value of the type that the body has.
	Model any
}

// PathParam is a parameter that stands in the path.
func PathParam(name, description string) Param {
	return Param{Name: name, Description: description, Type: "string", In: common.PathParameterKind, Required: true}
}

// QueryParam is a parameter of the query.
func QueryParam(name, description, jsonType string) Param {
	return Param{Name: name, Description: description, Type: jsonType, In: common.QueryParameterKind}
}

// BodyParam is the request's body.
func BodyParam(required bool) Param {
	return Param{Name: "body", In: common.BodyParameterKind, Required: required}
}
