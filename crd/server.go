package crd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"byre/apiserver/handlers"
	"byre/apiserver/process"
	"byre/apiserver/query"
	"byre/crd/instances"
	"byre/sqlstore"
)

// Server is an http.Handler of definitions and of their instances.
type Server struct {
	codecs      serializer.CodecFactory
	definitions *handlers.API
	// ownTables has the table of definitions.
	ownTables *query.BuiltinTables
	resolver  *resolver
	*controller
}

// errUnresolved is what a client is told when a definition cannot be served.
var errUnresolved = errors.New("error resolving resource")

// New makes a Server that passes requests that it does not serve on to
// delegate. It starts nothing.
func New(d process.Dependencies, delegate http.Handler) (*Server, error) {
	converters, err := conversion.NewCRConverterFactory(d.ServiceResolver, d.WebhookAuthentication)
	if err != nil {
		return nil, fmt.Errorf("crd: conversion webhooks: %w", err)
	}
	own, err := newGroup(d)
	if err != nil {
		return nil, err
	}
	validation.RegisterMetrics()
	s := &Server{codecs: own.codecs}
	if s.definitions, s.ownTables, err = own.api(d, delegate); err != nil {
		return nil, err
	}
	env := instances.NewEnvironment(instances.Environment{
		Scheme: own.scheme, Storage: d.Storage, Serving: d.Serving, Converters: converters, Sources: own,
	})
	s.resolver = newResolver(env, own)
	if s.controller, err = newController(d, s.resolver, own); err != nil {
		return nil, err
	}
	return s, nil
}

// Stores implements process.ChainServer: this server stores definitions and their instances.
func (s *Server) Stores(gr schema.GroupResource) (owner sqlstore.Owner, ok bool) {
	if gr == definitions {
		return sqlstore.BuiltIn, true
	}
	return sqlstore.Custom, s.resolver.get(gr.String()) != nil
}

// ServeHTTP serves definitions and their instances.
//
// Invariant: the discovery documents of a definition that existed at the start are never
// answered with 404. ServeHTTP keeps this: it waits until discovery lists these definitions.
// Otherwise clients would conclude that there is no such API.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	if ok && info.IsResourceRequest && info.APIGroup != apiextensions.GroupName {
		if s.serveInstances(w, req, info) {
			return
		}
	}
	if ok && !info.IsResourceRequest && strings.HasPrefix(req.URL.Path, "/apis/") {
		select {
		case <-s.synced:
		case <-req.Context().Done():
			err := apierrors.NewServiceUnavailable("discovery does not list the custom resources yet")
			err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
			s.write(w, req, info, err)
			return
		}
	}
	s.definitions.ServeHTTP(w, req)
}

// serveInstances answers a request for instances. It returns false, and writes nothing,
// if no definition serves the request.
func (s *Server) serveInstances(w http.ResponseWriter, req *http.Request, info *request.RequestInfo) bool {
	if info.Verb != "watch" {
		return s.serveRepeatedly(w, req, info)
	}
	v, err := s.view(req, info)
	return s.serveView(w, req, info, v, err)
}

// serveView answers a request by a view of its definition; err is why there is none.
func (s *Server) serveView(
	w http.ResponseWriter, req *http.Request, info *request.RequestInfo, v view, err error,
) bool {
	if err != nil {
		s.fail(w, req, info, err)
		return true
	}
	if v.definition == nil || !inScope(v.definition.CRD, info) {
		return false
	}
	handler, err := v.version.Handler(info)
	if err != nil {
		crd := v.definition.CRD
		for _, text := range instances.DeprecationWarnings(crd, instances.DefinitionVersion(crd, info.APIVersion)) {
			warning.AddWarning(req.Context(), "", text)
		}
		s.write(w, req, info, err)
		return true
	}
	handler.ServeHTTP(w, req)
	return true
}

// inScope tells whether a request names a namespace if and only if the resource is
// namespaced. List and watch may span all namespaces.
func inScope(crd *apiextensionsv1.CustomResourceDefinition, info *request.RequestInfo) bool {
	if crd.Spec.Scope != apiextensionsv1.NamespaceScoped {
		return info.Namespace == ""
	}
	return info.Namespace != "" || info.Verb == "list" || info.Verb == "watch"
}

// fail answers an error that the client has not caused. The log gets the details, the
// client does not, unless it may try again.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, err error) {
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) {
		s.write(w, req, info, err)
		return
	}
	klog.FromContext(req.Context()).Error(err, "Custom resource can't be served",
		"group", info.APIGroup, "version", info.APIVersion, "resource", info.Resource)
	s.write(w, req, info, apierrors.NewInternalError(errUnresolved))
}

func (s *Server) write(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, s.codecs, gv, w, req)
}

// Requests for instances are executed again when the definition has changed meanwhile.
//
// A write takes effect only if the definition is, in the transaction of the write, the one by
// which this server has decoded, pruned and validated it (sqlstore.Write.Requires). Otherwise
// it fails. A request may also fail before, because of a schema that is not the current one
// any more: another replica may have changed it a moment ago. So when a write fails, the server
// waits until its view of the definitions has everything that is committed. If the definition
// has changed, the client gets no answer, and the server executes the request again. An attempt
// that is answered with a 4xx wrote nothing, or a part of a collection was deleted.

// So does a write that changes nothing, and a read of an instance that was written with another encoding, if the
// definition is not the stored one any more (storage.Config.IsReplaced). Otherwise a replica would show an instance
// without the fields that its own schema lacks.

// maxAttempts bounds how often a request is executed. The client gets the answer to the last
// attempt, which asks it to try again.
const maxAttempts = 5

// view is a definition with the handlers of one of its versions, as they were at the beginning
// of a request. The zero value serves nothing.
type view struct {
	definition *instances.Definition
	version    *instances.Version
}

// equals reports whether both views decode, validate and store alike.
func (v view) equals(other view) bool {
	return v.version == other.version &&
		(v.version == nil || instances.Generation(v.definition.CRD) == instances.Generation(other.definition.CRD))
}

// view returns the current view of the resource and version of a request.
func (s *Server) view(req *http.Request, info *request.RequestInfo) (v view, err error) {
	v.definition, v.version, err = s.resolver.version(req.Context(), info.Resource+"."+info.APIGroup, info.APIVersion)
	return v, err
}

// hasChanged reports whether the view of a request is older than what is committed. If the
// database does not tell, the answer stays what it is.
func (s *Server) hasChanged(v view, req *http.Request, info *request.RequestInfo) bool {
	if _, err := s.resolver.store.Sync(req.Context()); err != nil {
		return false
	}
	now, err := s.view(req, info)
	return err == nil && !v.equals(now)
}

// attempt is the answer to one execution of a request. It passes a failure on to the client only
// if the definition has not changed.
type attempt struct {
	http.ResponseWriter
	hasChanged func() bool
	// isRead is true for a get and a list. They fail because of a definition by 429 only.
	isRead bool
	// isApply is true for a server-side apply. Of a field that the schema lacks it answers 500,
	// and so does a write that was done and can't be converted for its answer: only an apply
	// may be done twice.
	isApply bool
	// warnings are those of this execution, under mu. The recorder of the request's context, which repeats none, gets them
	// with the answer.
	mu       sync.Mutex
	warnings [][2]string
	outer    context.Context
	// answered is true after WriteHeader, and withheld if the client did not get the answer.
	answered, withheld bool
}

// AddWarning implements warning.Recorder.
func (a *attempt) AddWarning(agent, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = append(a.warnings, [2]string{agent, text})
}

// WriteHeader implements http.ResponseWriter.
func (a *attempt) WriteHeader(code int) {
	isFailure := code/100 == 4 || a.isApply && code == http.StatusInternalServerError
	if a.isRead {
		isFailure = code == http.StatusTooManyRequests
	}
	a.answered = true
	if a.withheld = isFailure && a.hasChanged(); !a.withheld {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, w := range a.warnings {
			warning.AddWarning(a.outer, w[0], w[1])
		}
		a.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (a *attempt) Write(p []byte) (int, error) {
	if !a.answered {
		a.WriteHeader(http.StatusOK)
	}
	if a.withheld {
		return len(p), nil
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *attempt) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// serveRepeatedly executes a request until its answer is certain. It returns false, and writes nothing,
// if no definition serves the request.
func (s *Server) serveRepeatedly(w http.ResponseWriter, req *http.Request, info *request.RequestInfo) bool {
	body := &repeatableBody{body: req.Body}
	before := w.Header().Clone()
	for n := 1; ; n++ {
		v, err := s.view(req, info)
		a := &attempt{
			ResponseWriter: w,
			outer:          req.Context(),
			hasChanged:     func() bool { return n < maxAttempts && s.hasChanged(v, req, info) },
			isRead:         info.Verb == "get" || info.Verb == "list",
			isApply:        strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch"),
		}
		req := req.WithContext(warning.WithWarningRecorder(req.Context(), a))
		req.Body = body.rewind()
		if served := s.serveView(a, req, info, v, err); !a.withheld {
			return served
		}
		// What is in the audit log and in the headers is not of the next attempt.
		if ac := audit.AuditContextFrom(req.Context()); ac != nil {
			ac.SetEventResponseStatus(nil)
		}
		clear(w.Header())
		maps.Copy(w.Header(), before)
	}
}

// repeatableBody is the body of a request that is read once for each attempt.
type repeatableBody struct {
	body io.Reader
	read bytes.Buffer
}

// rewind returns the body from its beginning. The HTTP server closes the request's own body.
func (r *repeatableBody) rewind() io.ReadCloser {
	return io.NopCloser(io.MultiReader(bytes.NewReader(r.read.Bytes()), io.TeeReader(r.body, &r.read)))
}
