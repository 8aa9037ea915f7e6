package openapi

import (
	"k8s.io/kube-openapi/pkg/common"
)

// The types in this file implement kube-openapi's common.RouteContainer and common.Route
// for Operations.

type container struct {
	root       string
	operations []Operation
}

func (c container) RootPath() string                   { return c.root }
func (c container) PathParameters() []common.Parameter { return nil }

func (c container) Routes() []common.Route {
	routes := make([]common.Route, len(c.operations))
	for i := range c.operations {
		routes[i] = route{&c.operations[i]}
	}
	return routes
}

type route struct{ op *Operation }

func (r route) Method() string             { return r.op.Method }
func (r route) Path() string               { return r.op.Path }
func (r route) OperationName() string      { return r.op.Name }
func (r route) Description() string        { return r.op.Doc }
func (r route) Consumes() []string         { return r.op.Consumes }
func (r route) Produces() []string         { return r.op.Produces }
func (r route) Metadata() map[string]any   { return r.op.Extensions }
func (r route) RequestPayloadSample() any  { return r.op.Request }
func (r route) ResponsePayloadSample() any { return r.op.Response }

func (r route) Parameters() []common.Parameter {
	params := make([]common.Parameter, len(r.op.Params))
	for i, p := range r.op.Params {
		params[i] = param{p}
	}
	return params
}

func (r route) StatusCodeResponses() []common.StatusCodeResponse {
	responses := make([]common.StatusCodeResponse, len(r.op.Responses))
	for i, resp := range r.op.Responses {
		responses[i] = response{resp}
	}
	return responses
}

type param struct{ p Param }

func (p param) Name() string               { return p.p.Name }
func (p param) Description() string        { return p.p.Description }
func (p param) Required() bool             { return p.p.Required }
func (p param) Kind() common.ParameterKind { return p.p.In }
func (p param) DataType() string           { return p.p.Type }
func (p param) AllowMultiple() bool        { return false }

type response struct{ r Response }

func (r response) Code() int       { return r.r.Code }
func (r response) Message() string { return r.r.Message }
func (r response) Model() any      { return r.r.Model }
