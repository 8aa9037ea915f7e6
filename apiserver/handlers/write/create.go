package write

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// Create serves the creates of a storage, which is a rest.Creater or a rest.NamedCreater.
func (h *Handlers) Create(s rest.Storage) http.HandlerFunc {
	if named, ok := s.(rest.NamedCreater); ok {
		return h.serve("Create", func(r *write) error { return r.create(named, true) })
	}
	unnamed := unnamedCreater{s.(rest.Creater)}
	return h.serve("Create", func(r *write) error { return r.create(unnamed, false) })
}

// unnamedCreater creates objects whose names are not in the path.
type unnamedCreater struct{ rest.Creater }

func (c unnamedCreater) Create(ctx context.Context, _ string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return c.Creater.Create(ctx, obj, validate, options)
}

func (r *write) create(creater rest.NamedCreater, hasName bool) (err error) {
	if r.namespace, r.name, err = r.Scope.Namer.Name(r.req); err != nil {
		if hasName {
			return err
		}
		if r.namespace, err = r.Scope.Namer.Namespace(r.req); err != nil {
			return err
		}
	}
	if err := r.negotiate(); err != nil {
		return err
	}
	serializer, err := negotiation.NegotiateInputSerializer(r.req, false, r.Scope.Serializer)
	if err != nil {
		return err
	}
	body, err := r.readBody(requestmetrics.Create)
	if err != nil {
		return err
	}
	options := &metav1.CreateOptions{}
	if err := r.decodeOptions(options); err != nil {
		return err
	}
	if err := checkOptions("CreateOptions", &options.TypeMeta, validation.ValidateCreateOptions(options)); err != nil {
		return err
	}

	obj, gv, err := r.decode(serializer, body, creater.New(), options.FieldValidation)
	if err != nil {
		return err
	}
	if !r.Scope.AcceptsGroupVersion(gv) {
		return badVersion(gv, r.Scope.Kind.GroupVersion())
	}
	if r.name == "" {
		_, r.name, _ = r.Scope.Namer.ObjectName(obj)
	}
	if r.namespace == "" && r.Scope.Resource == namespaceResource {
		r.namespace = r.name
	}
	r.ctx = request.WithNamespace(r.ctx, r.namespace)
	audit.LogRequestObject(r.req.Context(), obj, gv, r.Scope.Resource, r.Scope.Subresource, r.Scope.Serializer)
	if object, err := meta.Accessor(obj); err == nil {
		keeper, ok := creater.(rest.SubresourceObjectMetaPreserver)
		if !ok || r.Scope.Subresource == "" || !keeper.PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() {
			rest.WipeObjectMetaSystemFields(object)
		}
		if err := r.setNamespace(object); err != nil {
			return err
		}
	}

	manager := r.manager(options.FieldManager)
	r.recordAs("", manager)
	attributes := r.attributes(admission.Create, obj, nil, options, options.DryRun)
	r.dedupOwners(obj, false)
	if err := r.Fields.Create(obj, manager); err != nil {
		return fmt.Errorf("failed to create new object (Create for %v): %w", r.Scope.Kind, err)
	}
	if err := r.mutate(attributes); err != nil {
		return err
	}
	r.dedupOwners(obj, true)
	result, err := r.finish(creater.Create(r.ctx, r.name, obj, rest.AdmissionToValidateObjectFunc(r.admit, attributes, r.Scope), options))
	if err != nil {
		return err
	}
	if status, ok := result.(*metav1.Status); ok && status.Code == 0 {
		status.Code = http.StatusCreated
	}
	return r.answer(http.StatusCreated, result)
}
