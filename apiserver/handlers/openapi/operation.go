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
	// Name is a verb and its object ("listNamespacedPod"). It is unique within a
	// group version.
	Name string
	// Doc is the description, one sentence.
	Doc string
	// Params are the path, query and body parameters.
	Params []Param
	// Consumes and Produces are media types.
	Consumes, Produces []string
	// Request and Response are values of the types of the bodies; nil if there is
	// no body.
	Request, Response any
	// Responses are the responses by status code.
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

// A Response describes the response with one status code.
type Response struct {
	Code    int
	Message string
	// Model is a value of the body's type.
	Model any
}

// PathParam returns a required parameter of the path.
func PathParam(name, description string) Param {
	return Param{Name: name, Description: description, Type: "string", In: common.PathParameterKind, Required: true}
}

// QueryParam returns an optional parameter of the query.
func QueryParam(name, description, jsonType string) Param {
	return Param{Name: name, Description: description, Type: jsonType, In: common.QueryParameterKind}
}

// BodyParam returns the parameter that describes the request's body.
func BodyParam(required bool) Param {
	return Param{Name: "body", In: common.BodyParameterKind, Required: required}
}
