package endpoints

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/discovery"
	"byre/apiserver/managedfields"
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

// Serving is what all resources of a server have in common.
type Serving struct {
	// Admission is consulted by every write and connect; nil admits everything.
	Admission admission.Interface
	// Authorizer decides the checks that depend on a request's body or its
	// effect; without it, a write that would create by an update fails.
	Authorizer authorizer.Authorizer
	// TypeConverter gives managed fields the schema of the types. It is first
	// used by the first write and may be built only then.
	TypeConverter upstream.TypeConverter
	// FieldSets holds the managed fields of what is created, for all resources. Nil
	// has them computed for every object.
	FieldSets *managedfields.Cache
	// ParsedFields holds the parsed managed fields of what is updated, for all resources.
	// Nil leaves the managed fields of updates to upstream.
	ParsedFields *managedfields.Sets
	// EquivalentResources learns every resource and its kind; admission reads it
	// to match a resource by its other versions. Nil makes a new one.
	EquivalentResources runtime.EquivalentResourceRegistry

	// MinRequestTimeout is the least time a watch without timeoutSeconds stays
	// open; it is between one and two times as long. Zero means 30 minutes,
	// kube-apiserver's default.
	MinRequestTimeout time.Duration
	// MaxRequestBodyBytes bounds the body of a write. Zero means 3 MiB.
	MaxRequestBodyBytes int64

	// decodeReads answers no read from bytes, so that tests can compare.
	decodeReads bool
	// without turns optimizations off, so that a benchmark can measure each.
	without optimizations
}

// optimizations are those of writes: the files write_result.go of objectstore, managed.go,
// and the package stack say what each relies on.
type optimizations struct{ writeResult, fieldRemoval, stackGrowth bool }

const (
	defaultMinRequestTimeout   = 30 * time.Minute
	defaultMaxRequestBodyBytes = 3 * 1024 * 1024
)

func (s Serving) withDefaults() Serving {
	if s.MinRequestTimeout == 0 {
		s.MinRequestTimeout = defaultMinRequestTimeout
	}
	if s.MaxRequestBodyBytes == 0 {
		s.MaxRequestBodyBytes = defaultMaxRequestBodyBytes
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

	// Discovery is where New enters the groups and where /api, /apis and the
	// documents below are answered from. Groups that are entered at run time by
	// others are answered too.
	Discovery *discovery.Registry

	// NotFound answers the paths that no group here claims.
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

// rootPath is the path below which a group version is served, without a slash at
// its end.
func rootPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}
