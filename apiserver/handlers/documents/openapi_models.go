package documents

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Models are the OpenAPI definitions of the API's Go types.
type Models struct {
	version     string
	definitions common.GetOpenAPIDefinitions
	names       *openapi.DefinitionNamer
}

// NewModels makes models of generated definitions. version is the version in every
// document that is built from them. schemes know the kinds of the types. The kinds of
// apiextensions.k8s.io and apiregistration.k8s.io are always known, because some types
// are kinds of every group: documents of different servers are merged, and a merged
// document must have one definition of a type.
func NewModels(version string, definitions common.GetOpenAPIDefinitions, schemes ...*runtime.Scheme) *Models {
	everywhere := runtime.NewScheme()
	apiextensions.Install(everywhere)
	apiregistration.Install(everywhere)
	schemes = append(slices.Clone(schemes), everywhere)
	definitions = utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(definitions)
	return &Models{version: version, definitions: definitions, names: openapi.NewDefinitionNamer(schemes...)}
}

// Schemas returns a function that builds the schemas of the named types and of the types
// that these contain. Names are canonical, as
// k8s.io/kube-openapi/pkg/util.GetCanonicalTypeName gives them. The function takes some
// tens of milliseconds.
func (m *Models) Schemas(names ...string) func() (map[string]*spec.Schema, error) {
	return func() (map[string]*spec.Schema, error) {
		schemas, err := builder3.BuildOpenAPIDefinitionsForResources(m.v3Config(), names...)
		if err != nil {
			return nil, fmt.Errorf("openapi: schemas of types: %w", err)
		}
		return schemas, nil
	}
}

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

// Model is a struct that is an object, or part of one. The tag description of a field is its description, and the tag
// openapi is "optional" for one that is always written and need not be given.
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

// A Root is a path prefix, usually that of a group version, with the operations below it.
// Each root has its own OpenAPI v3 document.
type Root struct {
	// Path has no slash at either end: "apis/apps/v1".
	Path string
	// Operations returns all operations below Path.
	Operations func() ([]restful.Route, error)
	// Routes lists the method and path of each operation. The hash of the document is
	// computed from them without a call of Operations.
	Routes []string
}

// fingerprint returns a hash that identifies the root's document without building it. The
// document depends only on what BuildIdentity names and on the routes that are enabled.
func (r Root) fingerprint(build string) string {
	return Hash(build + "\n" + r.Path + "\n" + strings.Join(r.Routes, "\n"))
}

// Hash returns a hash in the form of kube-apiserver's hashes of documents.
func Hash(s string) string { return fmt.Sprintf("%X", sha512.Sum512([]byte(s))) }

// BuildIdentity returns a string that is equal for two servers only if they serve the same
// documents of the same routes: it names the build, the emulated version and the feature
// gates. A build without a version, or of modified sources, cannot be told from others; the
// start time stands for it, because clients cache a document until its hash changes.
func BuildIdentity(started time.Time, emulated string) string {
	program := started.Format(time.RFC3339Nano)
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" && build.Main.Version != "(devel)" &&
		!strings.Contains(build.Main.Version, "+dirty") {
		program = build.String()
	}
	return fmt.Sprintf("%s\n%s\n%v", program, emulated, utilfeature.DefaultFeatureGate)
}

const extensionKinds = "x-kubernetes-group-version-kind"

// filterScopedGVKs removes the kinds of other groups from the schemas of WatchEvent and
// DeleteOptions, which every group registers. Of about sixty kinds, the document at path
// keeps that of its own group version and that of the core group. It follows upstream's
// function of the same name in k8s.io/apiserver/pkg/server/routes/openapi.go.
func filterScopedGVKs(document *spec3.OpenAPI, path string) {
	group, version, ok := groupVersion(path)
	if !ok || document.Components == nil {
		return
	}
	for _, schema := range document.Components.Schemas {
		kinds, ok := schema.Extensions[extensionKinds].([]any)
		if !ok || len(kinds) < 2 || !isSharedKind(kinds[0]) {
			continue
		}
		var kept []any
		for _, kind := range kinds {
			g, v := field(kind, "group"), field(kind, "version")
			if (g == group && v == version) || (g == "" && v == "v1") {
				kept = append(kept, kind)
			}
		}
		schema.Extensions[extensionKinds] = kept
	}
}

// isSharedKind reports whether every group registers the kind.
func isSharedKind(kind any) bool {
	k := field(kind, "kind")
	return k == "WatchEvent" || k == "DeleteOptions"
}

func field(kind any, name string) string {
	fields, _ := kind.(map[string]any)
	value, _ := fields[name].(string)
	return value
}

// groupVersion parses the group version in "api/v1" or "apis/apps/v1".
func groupVersion(path string) (group, version string, ok bool) {
	switch parts := strings.Split(path, "/"); {
	case len(parts) == 2 && parts[0] == "api":
		return "", parts[1], true
	case len(parts) == 3 && parts[0] == "apis":
		return parts[1], parts[2], true
	default:
		return "", "", false
	}
}

const mediaJSON = "application/json"

// VersionRoot describes /version.
func VersionRoot() Root {
	return singleGetRoot(restful.Route{
		Path:        "/version/",
		Operation:   "getCodeVersion",
		Doc:         "get the version information for this server",
		Consumes:    []string{mediaJSON},
		Produces:    []string{mediaJSON},
		WriteSample: version.Info{},
	})
}

// TokenIssuerRoots describe the OpenID metadata with which others verify service account
// tokens.
func TokenIssuerRoots() []Root {
	return []Root{
		singleGetRoot(restful.Route{
			Path:        "/.well-known/openid-configuration/",
			Operation:   "getServiceAccountIssuerOpenIDConfiguration",
			Doc:         "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
			Produces:    []string{mediaJSON},
			WriteSample: "",
		}),
		singleGetRoot(restful.Route{
			Path:        "/openid/v1/jwks/",
			Operation:   "getServiceAccountIssuerOpenIDKeyset",
			Doc:         "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
			Produces:    []string{"application/jwk-set+json"},
			WriteSample: "",
		}),
	}
}

// singleGetRoot returns the root of one GET operation.
func singleGetRoot(op restful.Route) Root {
	op.Method = http.MethodGet
	return Root{
		Path:       op.Path[1 : len(op.Path)-1],
		Operations: func() ([]restful.Route, error) { return []restful.Route{op}, nil },
		Routes:     []string{op.Method + " " + op.Path},
	}
}
