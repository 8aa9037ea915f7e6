package crd

import (
	"net/http"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"byre/crd/instances"
)

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
func (s *Server) serveView(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, v view, err error) bool {
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
