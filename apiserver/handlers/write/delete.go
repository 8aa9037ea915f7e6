package write

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/apihelpers"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
)

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
	attributes := r.attributes(admission.Delete, nil, nil, options, options.DryRun)
	if ignoresReadErrors(options) {
		audit.AddAuditAnnotation(r.ctx, "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
		provider, ok := deleter.(rest.CorruptObjectDeleterProvider)
		if !ok || provider.GetCorruptObjDeleter() == nil {
			return apierrors.NewInternalError(errors.New("no unsafe deleter provided, can not honor ignoreStoreReadErrorWithClusterBreakingPotential"))
		}
		if err := r.authorizeUnsafeDelete(attributes); err != nil {
			return err
		}
		deleter = provider.GetCorruptObjDeleter()
	}

	result, isDeleted, err := deleter.Delete(r.ctx, r.name, rest.AdmissionToValidateObjectDeleteFunc(r.admit, attributes, r.Scope), options)
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
		return admission.NewForbidden(attributes, errors.New("ignoreStoreReadErrorWithClusterBreakingPotential delete option is not allowed on a subresource or non-resource request"))
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
