package handlers

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
)

// Group is an API group with its storages, types and codecs.
type Group struct {
	// Name is the group's name. It is empty for the core group, which is served
	// below /api; all other groups are served below /apis.
	Name string
	// Versions are the versions, the preferred one first. A version without storages
	// has no routes and is not in discovery.
	Versions []string
	// Storage maps a version and "resource" or "resource/subresource" to the
	// storage. Names are lower case.
	Storage map[string]map[string]rest.Storage
	// Scheme has every type that the storages use.
	Scheme *runtime.Scheme
	// Codecs are the encodings of request and response bodies.
	Codecs runtime.NegotiatedSerializer
	// ParameterCodec decodes query parameters into the options of get and connect.
	ParameterCodec runtime.ParameterCodec
}

// Serving is what all resources of a server share.
type Serving struct {
	// Admission is called for every write and connect; nil admits everything.
	Admission admission.Interface
	// Authorizer answers the checks that depend on a request's body or its effect. If
	// it is nil, an update that would create an object fails.
	Authorizer authorizer.Authorizer
	// TypeConverter has the schemas by which managed fields are computed. The first
	// write uses it first, so it may be built only then.
	TypeConverter upstream.TypeConverter
	// FieldSets caches the managed fields of created objects, for all resources. If it
	// is nil, they are computed for every object.
	FieldSets *managedfields.FieldSets
	// ParsedSets caches the parsed managed fields of updated objects, for all
	// resources. If it is nil, upstream computes the managed fields of updates.
	ParsedSets *managedfields.ParsedSets
	// EquivalentResources learns every resource and its kind. Admission reads it to
	// match a resource by its other versions. If it is nil, a new one is made.
	EquivalentResources runtime.EquivalentResourceRegistry

	// MinRequestTimeout bounds a watch without timeoutSeconds from below: such a watch
	// stays open for one to two times as long. Zero means 30 minutes, kube-apiserver's
	// default.
	MinRequestTimeout time.Duration

	// decodeReads passes all reads on to upstream's handlers, so that tests can
	// compare.
	decodeReads bool
}

const (
	defaultMinRequestTimeout = 30 * time.Minute
	// maxRequestBodyBytes bounds the body of a write.
	maxRequestBodyBytes = 3 * 1024 * 1024
)

func (s Serving) withDefaults() Serving {
	if s.MinRequestTimeout == 0 {
		s.MinRequestTimeout = defaultMinRequestTimeout
	}
	if s.EquivalentResources == nil {
		s.EquivalentResources = runtime.NewEquivalentResourceRegistry()
	}
	return s
}

// Config is what New needs to serve a set of groups.
type Config struct {
	Groups  []Group
	Serving Serving

	// Discovery is the registry to which New adds the groups. The API answers /api,
	// /apis and the documents below from it, also for groups that other servers add
	// later.
	Discovery *documents.Discovery

	// NotFound is the delegate: it serves the paths that belong to none of the groups.
	NotFound http.Handler
}

// Types says how the objects of a group version are made, converted and
// encoded.
type Types struct {
	Serializer      runtime.NegotiatedSerializer
	ParameterCodec  runtime.ParameterCodec
	Creater         runtime.ObjectCreater
	Convertor       runtime.ObjectConvertor
	UnsafeConvertor runtime.ObjectConvertor
	Defaulter       runtime.ObjectDefaulter
	Typer           runtime.ObjectTyper
}

func (g *Group) types() Types {
	return Types{
		Serializer:      g.Codecs,
		ParameterCodec:  g.ParameterCodec,
		Creater:         g.Scheme,
		Convertor:       g.Scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(g.Scheme),
		Defaulter:       g.Scheme,
		Typer:           g.Scheme,
	}
}

// rootPath is the path below which a group version is served, without a slash at its
// end.
func rootPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}
