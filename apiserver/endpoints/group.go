package endpoints

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Group is an API group with everything that serves it.
type Group struct {
	// Name is the group's name, empty for the core group, which is served
	// below /api; all others are below /apis.
	Name string
	// Versions are the versions in order of preference, the preferred first. A
	// version without storages is left out of routes and discovery.
	Versions []string
	// Storage has the storages by version and then by "resource" or
	// "resource/subresource". Names are lower case.
	Storage map[string]map[string]rest.Storage
	// Scheme knows every type that the storages use.
	Scheme *runtime.Scheme
	// Codecs negotiates the encodings of bodies.
	Codecs runtime.NegotiatedSerializer
	// ParameterCodec decodes the query parameters of connect and get options.
	ParameterCodec runtime.ParameterCodec
}

// Config is what New needs to serve a set of groups.
type Config struct {
	Groups []Group

	// Admission is consulted by every write and connect; nil admits everything.
	Admission admission.Interface
	// Authorizer decides the checks that depend on a request's body or its
	// effect, like creating by an update. Nil leaves them out.
	Authorizer authorizer.Authorizer
	// TypeConverter gives managed fields the schema of the types. It is first
	// used by the first write and may be built only then.
	TypeConverter managedfields.TypeConverter
	// EquivalentResources is filled by New with every resource and its kind;
	// admission reads it to match a resource by its other versions. Nil makes a
	// new one.
	EquivalentResources runtime.EquivalentResourceRegistry

	// MinRequestTimeout is the least time a watch without timeoutSeconds stays
	// open; it is between one and two times as long. Zero means 30 minutes,
	// kube-apiserver's default.
	MinRequestTimeout time.Duration
	// MaxRequestBodyBytes bounds the body of a write. Zero means 3 MiB.
	MaxRequestBodyBytes int64

	// NotFound answers the paths that no group here claims.
	NotFound http.Handler
}

// API serves the groups it was made for. It is immutable and safe for
// concurrent use.
type API struct {
	versions map[schema.GroupVersion]*Version
}

// Version serves one group version.
type Version struct{}

// New builds the routes of all groups.
func New(c Config) (*API, error) {
	return &API{}, nil
}

// ServeHTTP serves a request below /api or /apis.
func (a *API) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	http.NotFound(w, req)
}
