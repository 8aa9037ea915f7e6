package write

import (
	"context"
	"errors"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Update serves the updates of a storage.
func (h *Handlers) Update(s rest.Updater) http.HandlerFunc {
	return h.serve("Update", func(r *write) error { return r.update(s) })
}

func (r *write) update(updater rest.Updater) error {
	if err := r.findObject(); err != nil {
		return err
	}
	if err := r.negotiate(); err != nil {
		return err
	}
	body, err := r.readBody(requestmetrics.Update)
	if err != nil {
		return err
	}
	options := &metav1.UpdateOptions{}
	if err := r.decodeOptions(options); err != nil {
		return err
	}
	if err := checkOptions("UpdateOptions", &options.TypeMeta, validation.ValidateUpdateOptions(options)); err != nil {
		return err
	}
	serializer, err := negotiation.NegotiateInputSerializer(r.req, false, r.Scope.Serializer)
	if err != nil {
		return err
	}
	obj, gv, err := r.decode(serializer, body, updater.New(), options.FieldValidation)
	if err != nil {
		return err
	}
	if !r.Scope.AcceptsGroupVersion(gv) {
		return badVersion(gv, r.Scope.Kind.GroupVersion())
	}
	audit.LogRequestObject(r.req.Context(), obj, gv, r.Scope.Resource, r.Scope.Subresource, r.Scope.Serializer)
	if object, err := meta.Accessor(obj); err == nil {
		if err := r.setNamespace(object); err != nil {
			return err
		}
	}
	if err := r.checkName(obj); err != nil {
		return err
	}

	manager := r.manager(options.FieldManager)
	r.recordAs("", manager)
	r.dedupOwners(obj, false)
	// The storage calls this for each attempt, with the object that it has then.
	info := rest.DefaultUpdatedObjectInfo(obj, func(_ context.Context, obj, live runtime.Object) (runtime.Object, error) {
		obj = r.Fields.Update(live, obj, manager)
		return obj, r.admitUpdate(obj, live, options)
	})
	result, created, err := updater.Update(r.ctx, r.name, info, r.createValidation(options), r.updateValidation(options), false, options)
	return r.answerUpdate(result, created, err)
}

// answerUpdate answers a finished update or patch.
func (r *write) answerUpdate(result runtime.Object, created bool, err error) error {
	if result, err = r.finish(result, err); err != nil {
		return err
	}
	if created {
		return r.answer(http.StatusCreated, result)
	}
	return r.answer(http.StatusOK, result)
}

// admitUpdate calls mutating admission for an object that replaces live, or is created if live
// does not exist.
func (r *write) admitUpdate(obj, live runtime.Object, options *metav1.UpdateOptions) error {
	exists, err := hasUID(live)
	if err != nil {
		return err
	}
	attributes := r.attributes(admission.Update, obj, live, options, options.DryRun)
	if !exists {
		attributes = r.attributes(admission.Create, obj, nil, createOptions(options), options.DryRun)
	}
	if err := r.mutate(attributes); err != nil {
		return err
	}
	r.dedupOwners(obj, true)
	return nil
}

// updateValidation returns the validating admission of an update.
func (r *write) updateValidation(options *metav1.UpdateOptions) rest.ValidateObjectUpdateFunc {
	return rest.AdmissionToValidateObjectUpdateFunc(r.admit, r.attributes(admission.Update, nil, nil, options, options.DryRun), r.Scope)
}

// createValidation returns the check of an update that creates: the user must be allowed to
// create, and then validating admission is asked.
func (r *write) createValidation(options *metav1.UpdateOptions) rest.ValidateObjectFunc {
	s := r.Scope
	validate := rest.AdmissionToValidateObjectFunc(r.admit, r.attributes(admission.Create, nil, nil, createOptions(options), options.DryRun), s)
	attributes := authorizer.AttributesRecord{
		User:            r.user,
		ResourceRequest: true,
		Path:            r.req.URL.Path,
		Verb:            "create",
		APIGroup:        s.Resource.Group,
		APIVersion:      s.Resource.Version,
		Resource:        s.Resource.Resource,
		Subresource:     s.Subresource,
		Namespace:       r.namespace,
		Name:            r.name,
	}
	authorize := sync.OnceValue(func() error { // not for each attempt
		if s.Authorizer == nil {
			return apierrors.NewInternalError(errors.New("no authorizer provided, unable to authorize a create on update"))
		}
		decision, reason, err := s.Authorizer.Authorize(r.ctx, attributes)
		switch {
		case decision == authorizer.DecisionAllow: // RBAC may allow a request and return an error
			return nil
		case err != nil:
			return apierrors.NewInternalError(err)
		default:
			return responsewriters.ForbiddenStatusError(attributes, reason)
		}
	})
	return func(ctx context.Context, obj runtime.Object) error {
		if err := authorize(); err != nil {
			return err
		}
		return validate(ctx, obj)
	}
}

// createOptions returns the options of an update as those of a create.
func createOptions(o *metav1.UpdateOptions) *metav1.CreateOptions {
	return &metav1.CreateOptions{
		TypeMeta:        metav1.TypeMeta{Kind: "CreateOptions", APIVersion: metav1.SchemeGroupVersion.String()},
		DryRun:          o.DryRun,
		FieldManager:    o.FieldManager,
		FieldValidation: o.FieldValidation,
	}
}
