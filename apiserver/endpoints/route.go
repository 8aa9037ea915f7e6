package endpoints

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"byre/apiserver/openapi"
)

// A Route is one method at one path.
type Route struct {
	// Method is the HTTP method.
	Method string
	// Path is absolute, with parameters in braces; "{path:*}" at its end takes
	// the rest. The parameters are for documents only: handlers read them from
	// the request's RequestInfo.
	Path string
	// Handler serves the requests.
	Handler http.Handler
	// Consumes and Produces are the media types of request and answer.
	Consumes, Produces []string

	// skipsNegotiation leaves method and media types to the handler.
	skipsNegotiation bool
	describe         func(*Route) (openapi.Operation, error)
}

// Operation describes the route. It is made anew at each call: descriptions are
// asked for rarely and are large.
func (r *Route) Operation() (openapi.Operation, error) { return r.describe(r) }

// consumes says whether a body of this content type may be sent. Without one,
// methods that need no body are let through, and others count as octet streams:
// the rule of go-restful, whose answers clients of kube-apiserver see.
func (r *Route) consumes(contentType string) bool {
	if contentType == "" {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete, http.MethodTrace:
			return true
		}
		contentType = "application/octet-stream"
	}
	return anyMatches(contentType, r.Consumes, false)
}

// produces says whether the route has a media type that accept names.
func (r *Route) produces(accept string) bool {
	return accept == "" || anyMatches(accept, r.Produces, true)
}

// anyMatches says whether one of the media types in a header's list, without
// its parameters, is among those offered.
func anyMatches(header string, offered []string, wildcard bool) bool {
	for part := range strings.SplitSeq(header, ",") {
		media, _, _ := strings.Cut(part, ";")
		media = strings.Trim(media, " ")
		if wildcard && media == "*/*" {
			return true
		}
		for _, o := range offered {
			if o == "*/*" || o == media {
				return true
			}
		}
	}
	return false
}

// methods serves one path: the routes there, which differ in method.
type methods struct {
	routes []Route
	errors errorWriter
}

// ServeHTTP picks the route by method, then by the request's content type, then
// by what it accepts, and says which of them failed, as go-restful does.
func (m *methods) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	i := slices.IndexFunc(m.routes, func(r Route) bool { return r.skipsNegotiation || r.Method == req.Method })
	if i < 0 {
		m.errors.write(w, req, http.StatusMethodNotAllowed, "405: Method Not Allowed")
		return
	}
	route := &m.routes[i]
	if route.skipsNegotiation {
		route.Handler.ServeHTTP(w, req)
		return
	}
	if !route.consumes(req.Header.Get("Content-Type")) {
		m.errors.write(w, req, http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
		return
	}
	if !route.produces(req.Header.Get("Accept")) {
		m.errors.write(w, req, http.StatusNotAcceptable,
			fmt.Sprintf("406: Not Acceptable\n\nAvailable representations: %s", strings.Join(route.Produces, ", ")))
		return
	}
	route.Handler.ServeHTTP(w, req)
}

// GetOnly serves a document to GET and refuses other methods as routes do.
func GetOnly(document http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return &methods{
		routes: []Route{{Method: http.MethodGet, Handler: document, Consumes: anyMedia, Produces: anyMedia}},
		errors: errorWriter{serializer},
	}
}

// errorWriter writes what goes wrong before a resource is reached.
type errorWriter struct{ serializer runtime.NegotiatedSerializer }

func (f errorWriter) write(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, f.serializer, schema.GroupVersion{}, w, req)
}

func (f errorWriter) notFound(w http.ResponseWriter, req *http.Request) {
	f.write(w, req, http.StatusNotFound, "404: Page Not Found")
}
