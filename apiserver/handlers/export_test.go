package handlers

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	goruntime "runtime"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// DecodeReads makes s decode all reads instead of answering them from bytes.
func DecodeReads(s Serving) Serving {
	s.decodeReads = true
	return s
}

// UpstreamWrites serves the writes of the API by upstream's handlers, with upstream's field manager,
// and all else by the API.
func (a *API) UpstreamWrites() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, _ := request.RequestInfoFrom(req.Context())
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if r := a.Resource(gv, strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/")); r != nil {
			if handler := r.upstreamWrite(info.Verb); handler != nil {
				handler(w, req)
				return
			}
		}
		a.ServeHTTP(w, req)
	})
}

// Indent indents JSON that comes in pieces.
func Indent(pieces ...[]byte) (indented []byte) {
	var i indenter
	for _, piece := range pieces {
		indented = i.append(indented, piece)
	}
	return indented
}

// Resource returns the resource or subresource at a path of a group version; nil if there is none.
func (a *API) Resource(gv schema.GroupVersion, path string) *Resource {
	for _, r := range a.resources {
		if r.gv == gv && r.path == path {
			return r
		}
	}
	return nil
}

// Stored returns the resources and subresources that are stored.
func (a *API) Stored() (stored []*Resource) {
	for _, r := range a.resources {
		if _, ok, _ := r.storedKind(); ok {
			stored = append(stored, r)
		}
	}
	return stored
}

// Path returns the path of the resource, which begins with the group version.
func (r *Resource) Path() string { return r.gv.String() + " " + r.path }

// IsSubresource reports whether the resource is a subresource.
func (r *Resource) IsSubresource() bool { return r.subresource != "" }

// GroupVersionKind returns the external kind that the resource serves.
func (r *Resource) GroupVersionKind() schema.GroupVersionKind { return r.kind }

// Scope returns the request scope that the resource's handlers share.
func (r *Resource) Scope() *handlers.RequestScope { return r.scope }

func (r *Resource) upstreamWrite(verb string) http.HandlerFunc {
	admit := r.serving.Admission
	switch s := r.storage.(type) {
	case rest.NamedCreater:
		if verb == "create" {
			return handlers.CreateNamedResource(s, r.scope, admit)
		}
	case rest.Creater:
		if verb == "create" {
			return handlers.CreateResource(s, r.scope, admit)
		}
	}
	switch verb {
	case "update":
		return handlers.UpdateResource(r.storage.(rest.Updater), r.scope, admit)
	case "patch":
		return handlers.PatchResource(r.storage.(rest.Patcher), r.scope, admit, r.patchTypes)
	case "delete":
		return handlers.DeleteResource(r.storage.(rest.GracefulDeleter), true, r.scope, admit)
	case "deletecollection":
		return handlers.DeleteCollection(r.storage.(rest.CollectionDeleter), true, r.scope, admit)
	}
	return nil
}

// FromBytes reports whether reads of a resource are answered from bytes.
func (r *Resource) FromBytes() bool { return r.encoded != nil }

// Pattern is the pattern of the route that serves a path; "" for a path that no route
// serves.
func (a *API) Pattern(path string) string {
	found := a.mux.find(path)
	for pattern, at := range a.mux.paths {
		if at == found {
			return pattern
		}
	}
	return ""
}

// WritesFromBytes reports whether writes are answered without another encoding.
func (r *Resource) WritesFromBytes() bool { return r.written != nil }

// PrintRow prints an object's row and returns a function that appends the row as it is at
// the time of that call. It returns nil if such rows are not kept, or if the resource has
// no tables made of rows.
func (r *Resource) PrintRow(ctx context.Context, obj runtime.Object) (func() (string, error), error) {
	if r.encoded == nil || r.encoded.formats.tables == nil {
		return nil, nil
	}
	row, constant, err := r.encoded.formats.tables.print(ctx, obj)
	if err != nil || !constant {
		return nil, err
	}
	return func() (string, error) {
		text, err := appendPrinted(nil, row)
		return string(text), err
	}, nil
}

// KeepsRows reports whether tables of the resource are made of the rows of single objects.
func (r *Resource) KeepsRows() bool { return r.encoded != nil && r.encoded.formats.tables != nil }

// OverriddenReads returns the reads that a storage, or what it embeds, does otherwise than the
// registry that registryOf returns. The compiler generates the methods that are promoted.
func OverriddenReads(s rest.Storage) (overridden []string) {
	if _, ok := s.(registryProvider); ok || registryOf(s) == nil {
		return nil
	}
	for value := reflect.ValueOf(s); value.Type() != reflect.TypeFor[*genericregistry.Store](); value = embeddedGetter(
		reflect.Indirect(value)) {
		for _, name := range []string{"Get", "List", "Watch"} {
			method, ok := value.Type().MethodByName(name)
			if !ok {
				continue
			}
			pc := method.Func.Pointer()
			if file, _ := goruntime.FuncForPC(pc).FileLine(pc); file != "<autogenerated>" {
				overridden = append(overridden, fmt.Sprintf("%s.%s", value.Type(), name))
			}
		}
	}
	return overridden
}

// Reads says how a storage is read: "embedded", from a registry that it embeds; "decorated", from
// one that changes what it reads; "provided", from one that a method returns; "decoded", by the
// storage's own methods.
func Reads(s rest.Storage) string {
	_, provides := s.(registryProvider)
	switch registry := registryOf(s); {
	case registry == nil:
		return "decoded"
	case registry.Decorator != nil:
		return "decorated"
	case provides:
		return "provided"
	default:
		return "embedded"
	}
}
