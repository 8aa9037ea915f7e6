package handlers

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// A Route is one method at one path.
type Route struct {
	// Method is the HTTP method.
	Method string
	// Path is absolute and has its parameters in braces. "{path:*}" at the end
	// matches the rest of the path. The parameters are used for OpenAPI only:
	// handlers read them from RequestInfo.
	Path string
	// Handler serves the requests.
	Handler http.Handler
	// Consumes and Produces are the media types of requests and responses.
	Consumes, Produces []string

	// skipsNegotiation says that the handler itself checks method and media types.
	skipsNegotiation bool
	// describe builds the OpenAPI description in each call, because descriptions are large and
	// seldom used.
	describe func(*Route) (restful.Route, error)
}

// consumes reports whether the route accepts the content type. Without a content type, a
// method that needs no body is accepted, and the body of another method counts as an octet
// stream. These are the rules of go-restful, which kube-apiserver uses.
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

// produces reports whether the route has a media type that the Accept header names.
func (r *Route) produces(accept string) bool {
	return accept == "" || anyMatches(accept, r.Produces, true)
}

// anyMatches reports whether one of the media types in a header, without its parameters, is
// among those offered.
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

// methods serves the routes of one path, which differ in their methods.
type methods struct {
	routes []Route
	errors errorWriter
}

// ServeHTTP selects the route by method and then checks the request's content type and
// Accept header. It answers a mismatch with 405, 415 or 406, as go-restful does.
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

// GetOnly returns a handler that serves document to GET and answers other methods with 405.
func GetOnly(document http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return &methods{
		routes: []Route{{Method: http.MethodGet, Handler: document, Consumes: anyMedia, Produces: anyMedia}},
		errors: errorWriter{serializer},
	}
}

// errorWriter writes the Status of a request that no route serves.
type errorWriter struct{ serializer runtime.NegotiatedSerializer }

func (f errorWriter) write(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, f.serializer, schema.GroupVersion{}, w, req)
}

func (f errorWriter) notFound(w http.ResponseWriter, req *http.Request) {
	f.write(w, req, http.StatusNotFound, "404: Page Not Found")
}
