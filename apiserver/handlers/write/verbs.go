package write

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/apihelpers"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"byre/apiserver/storage"
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

func (c unnamedCreater) Create(
	ctx context.Context, _ string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
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
	result, err := r.finish(creater.Create(r.ctx, r.name, obj,
		rest.AdmissionToValidateObjectFunc(r.admit, attributes, r.Scope), options))
	if err != nil {
		return err
	}
	if status, ok := result.(*metav1.Status); ok && status.Code == 0 {
		status.Code = http.StatusCreated
	}
	return r.answer(http.StatusCreated, result)
}

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
	result, created, err := updater.Update(r.ctx, r.name, info, r.createValidation(options), r.updateValidation(options),
		false, options)
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
	return rest.AdmissionToValidateObjectUpdateFunc(r.admit,
		r.attributes(admission.Update, nil, nil, options, options.DryRun), r.Scope)
}

// createValidation returns the check of an update that creates: the user must be allowed to
// create, and then validating admission is asked.
func (r *write) createValidation(options *metav1.UpdateOptions) rest.ValidateObjectFunc {
	s := r.Scope
	validate := rest.AdmissionToValidateObjectFunc(r.admit,
		r.attributes(admission.Create, nil, nil, createOptions(options), options.DryRun), s)
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

// Delete serves the deletes of a storage.
func (h *Handlers) Delete(s rest.GracefulDeleter) http.HandlerFunc {
	return h.serve("Delete", func(r *write) error { return r.delete(s) })
}

func (r *write) delete(deleter rest.GracefulDeleter) error {
	if err := r.findObject(); err != nil {
		return err
	}
	if err := r.negotiate(); err != nil {
		return err
	}
	options, err := r.deleteOptions()
	if err != nil {
		return err
	}
	if err := checkOptions("DeleteOptions", &options.TypeMeta, validation.ValidateDeleteOptions(options)); err != nil {
		return err
	}
	r.recordAs("", "")
	attributes := r.attributes(admission.Delete, nil, nil, options, options.DryRun)
	if ignoresReadErrors(options) {
		audit.AddAuditAnnotation(r.ctx, "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
		provider, ok := deleter.(rest.CorruptObjectDeleterProvider)
		if !ok || provider.GetCorruptObjDeleter() == nil {
			return apierrors.NewInternalError(
				errors.New("no unsafe deleter provided, can not honor ignoreStoreReadErrorWithClusterBreakingPotential"))
		}
		if err := r.authorizeUnsafeDelete(attributes); err != nil {
			return err
		}
		deleter = provider.GetCorruptObjDeleter()
	}

	result, isDeleted, err := deleter.Delete(r.ctx, r.name,
		rest.AdmissionToValidateObjectDeleteFunc(r.admit, attributes, r.Scope), options)
	if result, err = r.finish(result, err); err != nil {
		return err
	}
	status := http.StatusOK
	// Upstream keeps this for old clients: 202 only for those that ask for cascading deletion.
	if orphans := options.OrphanDependents; !isDeleted && orphans != nil && !*orphans { //nolint:staticcheck // SA1019: the deprecated field is what is asked
		status = http.StatusAccepted
	}
	if result == nil {
		result = &metav1.Status{
			Status: metav1.StatusSuccess, Code: int32(status),
			Details: &metav1.StatusDetails{Name: r.name, Kind: r.Scope.Kind.Kind},
		}
	}
	return r.answer(status, result)
}

// DeleteCollection serves the deletes of a storage's collections, by upstream's handler.
func (h *Handlers) DeleteCollection(s rest.CollectionDeleter) http.HandlerFunc {
	serve := handlers.DeleteCollection(s, true, h.Scope, h.Admission)
	return func(w http.ResponseWriter, req *http.Request) {
		serve(w, req.WithContext(storage.WithRequest(req.Context(), newRequest(req.Context(), "", ""))))
	}
}

// DecodeListOptions decodes the options that say which objects are listed.
func DecodeListOptions(scope *handlers.RequestScope, req *http.Request) (*metainternalversion.ListOptions, error) {
	options := &metainternalversion.ListOptions{}
	if err := decodeQuery(req, scope.MetaGroupVersion, options); err != nil {
		return nil, err
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	metainternalversion.SetListOptionsDefaults(options, watchList)
	if errs := metainternalversionvalidation.ValidateListOptions(options, watchList); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if options.FieldSelector == nil {
		return options, nil
	}
	selector, err := options.FieldSelector.Transform(func(label, value string) (string, string, error) {
		return scope.Convertor.ConvertFieldLabel(scope.Kind, label, value)
	})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	options.FieldSelector = selector
	return options, nil
}

// deleteOptions decodes the options of a delete from the body, or from the query if there is no
// body.
func (r *write) deleteOptions() (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{}
	body, err := r.readBody(requestmetrics.Delete)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		err = r.decodeOptions(options)
	} else {
		err = r.decodeDeleteOptions(body, options)
	}
	if err != nil {
		return nil, err
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion) {
		options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	return options, nil
}

// decodeDeleteOptions decodes the body of a delete, which may be of any group's version.
func (r *write) decodeDeleteOptions(body []byte, options *metav1.DeleteOptions) error {
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	serializer, err := negotiation.NegotiateInputSerializer(r.req, false, codecs)
	if err != nil {
		return err
	}
	kind := r.Scope.MetaGroupVersion.WithKind("DeleteOptions")
	obj, gvk, err := codecs.DecoderToVersion(serializer.Serializer, kind.GroupVersion()).Decode(body, &kind, options)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if obj != runtime.Object(options) {
		return apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	audit.LogRequestObject(r.req.Context(), obj, gvk.GroupVersion(), r.Scope.Resource, r.Scope.Subresource, codecs)
	return nil
}

func ignoresReadErrors(options *metav1.DeleteOptions) bool {
	ignores := options.IgnoreStoreReadErrorWithClusterBreakingPotential
	return ignores != nil && *ignores
}

// authorizeUnsafeDelete returns an error unless the user may delete objects that can't be read.
func (r *write) authorizeUnsafeDelete(attributes admission.Attributes) error {
	const verb = "unsafe-delete-ignore-read-errors"
	if r.Scope.Authorizer == nil {
		return apierrors.NewInternalError(errors.New("no authorizer provided, unable to authorize unsafe delete"))
	}
	if r.Scope.Subresource != "" {
		return admission.NewForbidden(attributes,
			errors.New(
				"ignoreStoreReadErrorWithClusterBreakingPotential delete option is not allowed on a subresource or non-resource request"))
	}
	// RequestInfo has selectors of lists and of deletions of collections only.
	decision, reason, err := r.Scope.Authorizer.Authorize(r.ctx, authorizer.AttributesRecord{
		User:            r.user,
		Verb:            verb,
		Namespace:       r.namespace,
		Name:            r.name,
		APIGroup:        r.Scope.Resource.Group,
		APIVersion:      r.Scope.Resource.Version,
		Resource:        r.Scope.Resource.Resource,
		ResourceRequest: true,
	})
	switch {
	case err != nil:
		klog.FromContext(r.ctx).V(1).Info("failed to authorize", "err", err)
		return admission.NewForbidden(attributes, fmt.Errorf("error while checking permission for %q, %w", verb, err))
	case decision == authorizer.DecisionAllow:
		return nil
	default:
		return admission.NewForbidden(attributes, fmt.Errorf("not permitted to do %q, reason: %s", verb, reason))
	}
}
