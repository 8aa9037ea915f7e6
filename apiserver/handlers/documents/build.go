package documents

import (
	"encoding/json"
	"fmt"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// container gives the operations of a root to kube-openapi's builders.
type container struct {
	root       string
	operations []restful.Route
}

func (c container) RootPath() string                   { return c.root }
func (c container) PathParameters() []common.Parameter { return nil }

func (c container) Routes() []common.Route {
	routes := make([]common.Route, len(c.operations))
	for i := range c.operations {
		routes[i] = &restfuladapter.RouteAdapter{Route: &c.operations[i]}
	}
	return routes
}

func (m *Models) info() *spec.Info {
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: m.version}}
}

// bearer is the name of the security scheme, the only one that kube-apiserver's documents
// have.
const (
	bearer            = "BearerToken"
	bearerDescription = "Bearer Token authentication"
)

// operationID adds the group version to an operation's name to make it unique:
// listNamespacedPod below /api/v1 becomes listCoreV1NamespacedPod.
func operationID(r common.Route) (string, []string, error) {
	return openapi.GetOperationIDAndTags(&restful.Route{Operation: r.OperationName(), Path: r.Path()})
}

func (m *Models) v2Config() *common.Config {
	return &common.Config{
		ProtocolList:                   []string{"https"},
		Info:                           m.info(),
		DefaultResponse:                &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
		CommonResponses:                map[int]spec.Response{401: {ResponseProps: spec.ResponseProps{Description: "Unauthorized"}}},
		GetOperationIDAndTagsFromRoute: operationID,
		GetDefinitionName:              m.names.GetDefinitionName,
		GetDefinitions:                 m.definitions,
		SecurityDefinitions: &spec.SecurityDefinitions{bearer: {SecuritySchemeProps: spec.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: bearerDescription,
		}}},
		DefaultSecurity: []map[string][]string{{bearer: {}}},
	}
}

func (m *Models) v3Config() *common.OpenAPIV3Config {
	return &common.OpenAPIV3Config{
		Info:                           m.info(),
		DefaultResponse:                &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		CommonResponses:                map[int]*spec3.Response{401: {ResponseProps: spec3.ResponseProps{Description: "Unauthorized"}}},
		GetOperationIDAndTagsFromRoute: operationID,
		GetDefinitionName:              m.names.GetDefinitionName,
		GetDefinitions:                 m.definitions,
		SecuritySchemes: spec3.SecuritySchemes{bearer: {SecuritySchemeProps: spec3.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: bearerDescription,
		}}},
	}
}

// V2 builds the OpenAPI v2 document of all roots as JSON.
func (m *Models) V2(roots []Root) ([]byte, error) {
	containers := make([]common.RouteContainer, 0, len(roots))
	for _, root := range roots {
		operations, err := root.Operations()
		if err != nil {
			return nil, fmt.Errorf("openapi: %s: %w", root.Path, err)
		}
		containers = append(containers, container{root: "/" + root.Path, operations: operations})
	}
	document, err := builder.BuildOpenAPISpecFromRoutes(containers, m.v2Config())
	if err != nil {
		return nil, fmt.Errorf("openapi: version 2: %w", err)
	}
	// As in kube-apiserver, OpenAPI v2 has no defaults, because clients would apply
	// them.
	document.Definitions = handler.PruneDefaults(document.Definitions)
	return document.MarshalJSON()
}

// V3 builds the OpenAPI v3 document of one root as JSON.
func (m *Models) V3(root Root) ([]byte, error) {
	operations, err := root.Operations()
	if err != nil {
		return nil, fmt.Errorf("openapi: %s: %w", root.Path, err)
	}
	containers := []common.RouteContainer{container{root: "/" + root.Path, operations: operations}}
	document, err := builder3.BuildOpenAPISpecFromRoutes(containers, m.v3Config())
	if err != nil {
		return nil, fmt.Errorf("openapi: version 3 of %s: %w", root.Path, err)
	}
	filterScopedGVKs(document, root.Path)
	return json.Marshal(document)
}
