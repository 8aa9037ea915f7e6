package crd

import (
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
)

// ServeHTTP serves definitions and what they define.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	if ok && info.IsResourceRequest && info.APIGroup != apiextensions.GroupName {
		if s.serveInstances(w, req, info) {
			return
		}
	}
	s.definitions.ServeHTTP(w, req)
}

// serveInstances answers a request for instances. It returns false, having done
// nothing, if they are not defined.
func (s *Server) serveInstances(w http.ResponseWriter, req *http.Request, info *request.RequestInfo) bool {
	ctx := req.Context()
	definition, version, err := s.table.version(ctx, info.Resource+"."+info.APIGroup, info.APIVersion)
	if err != nil {
		s.fail(w, req, info, err)
		return true
	}
	if definition == nil || !inScope(definition.crd, info) {
		return false
	}
	handler, err := version.handler(info)
	if err != nil {
		for _, text := range deprecationWarnings(definition.crd, versionSpec(definition.crd, info.APIVersion)) {
			warning.AddWarning(ctx, "", text)
		}
		s.write(w, req, info, err)
		return true
	}
	handler.ServeHTTP(w, req)
	return true
}

// inScope says whether the request names a namespace as the scope of the
// resource demands.
func inScope(crd *apiextensionsv1.CustomResourceDefinition, info *request.RequestInfo) bool {
	if crd.Spec.Scope != apiextensionsv1.NamespaceScoped {
		return info.Namespace == ""
	}
	return info.Namespace != "" || info.Verb == "list" || info.Verb == "watch"
}

// handler returns what serves a request, or why nothing does.
func (v *version) handler(info *request.RequestInfo) (http.Handler, error) {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	verbs, ok := v.handlers[info.Subresource]
	if !ok {
		return nil, apierrors.NewNotFound(resource, info.Name)
	}
	handler, ok := verbs[info.Verb]
	if !ok {
		return nil, apierrors.NewMethodNotSupported(resource, info.Verb)
	}
	return handler, nil
}

// fail answers what is not the client's fault. What exactly went wrong is for
// the log.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, err error) {
	klog.FromContext(req.Context()).Error(err, "Custom resource can't be served",
		"group", info.APIGroup, "version", info.APIVersion, "resource", info.Resource)
	s.write(w, req, info, apierrors.NewInternalError(errUnresolved))
}

func (s *Server) write(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, s.codecs, gv, w, req)
}
