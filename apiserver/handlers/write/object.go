package write

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
)

// isStrict reports whether a request asks for the check of unknown and repeated fields. The
// default is a warning.
func isStrict(directive string) bool { return directive != metav1.FieldValidationIgnore }

// decode decodes the object in a body to the internal version, and returns the version that
// the body has.
func (r *write) decode(info runtime.SerializerInfo, body []byte, into runtime.Object, directive string) (runtime.Object, schema.GroupVersion, error) {
	serializer := info.Serializer
	if isStrict(directive) {
		serializer = info.StrictSerializer
	}
	kind := r.Scope.Kind
	obj, gvk, err := r.Scope.Serializer.DecoderToVersion(serializer, r.Scope.HubGroupVersion).Decode(body, &kind, into)
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil || directive != metav1.FieldValidationWarn && directive != "" {
			return nil, schema.GroupVersion{}, r.decodeError(err, into, gvk, body)
		}
		r.warn(strict.Errors())
	}
	r.span.AddEvent("The object was decoded")
	return obj, gvk.GroupVersion(), nil
}

func (r *write) decodeError(cause error, into runtime.Object, gvk *schema.GroupVersionKind, body []byte) error {
	kinds, _, err := r.Scope.Typer.ObjectKinds(into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if gvk != nil && gvk.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, kinds[0].Kind, cause))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", kinds[0].Kind, cause, summary(body)))
}

// summary returns the beginning of a body, for an error.
func summary(body []byte) string {
	const most = 30
	if len(body) == 0 {
		return "<empty>"
	}
	text, dots := body, ""
	if len(body) > most {
		text, dots = body[:most], " ..."
	}
	if body[0] == '{' {
		return string(text) + dots
	}
	return hex.EncodeToString(text) + dots
}

func badVersion(has, want schema.GroupVersion) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%v)", has, want))
}

// warn adds a warning for each unknown or repeated field. The YAML decoder has several of them
// in one error.
func (r *write) warn(errs []error) {
	for _, err := range errs {
		text, ok := strings.CutPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: unmarshal errors:\n")
		if !ok {
			warning.AddWarning(r.req.Context(), "", err.Error())
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			warning.AddWarning(r.req.Context(), "", strings.TrimSpace(line))
		}
	}
}

// setNamespace sets the namespace of an object to that of the request. It fails if the object
// has another.
func (r *write) setNamespace(object metav1.Object) error {
	return rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForResource(r.namespace, r.Scope.Resource), object)
}

// checkName checks that the object has the name and the namespace of the request.
func (r *write) checkName(obj runtime.Object) error {
	namespace, name, err := r.Scope.Namer.ObjectName(obj)
	switch {
	case err != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: %v", r.name, err))
	case name != r.name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, r.name))
	case r.namespace != "" && namespace != "" && namespace != r.namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", namespace, r.namespace))
	}
	return nil
}

// hasUID reports whether obj is an object that exists: the live object of an update that
// creates has no UID.
func hasUID(obj runtime.Object) (bool, error) {
	if obj == nil {
		return false, nil
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return object.GetUID() != "", nil
}

// mutate calls mutating admission. Managed fields that a plugin has made invalid are set back.
func (r *write) mutate(attributes admission.Attributes) error {
	admit, ok := r.admit.(admission.MutationInterface)
	if !ok || !admit.Handles(attributes.GetOperation()) {
		return nil
	}
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return admit.Admit(r.ctx, attributes, r.Scope)
	}
	before := slices.Clone(object.GetManagedFields())
	if err := admit.Admit(r.ctx, attributes, r.Scope); err != nil {
		return err
	}
	r.span.AddEvent("Mutating admission is done")
	after := object.GetManagedFields()
	if slices.Equal(before, after) {
		return nil // they are the step's own
	}
	if err := upstream.ValidateManagedFields(after); err != nil {
		object.SetManagedFields(before)
		warning.AddWarning(r.ctx, "", fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err.Error()))
	}
	return nil
}

// dedupOwners removes repeated owner references, with a warning.
func (r *write) dedupOwners(obj runtime.Object, isAdmitted bool) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	var kept []metav1.OwnerReference
	var repeated []string
	for _, ref := range object.GetOwnerReferences() {
		isSame := func(o metav1.OwnerReference) bool { return o.UID == ref.UID && apiequality.Semantic.DeepEqual(o, ref) }
		if slices.ContainsFunc(kept, isSame) {
			repeated = append(repeated, string(ref.UID))
		} else {
			kept = append(kept, ref)
		}
	}
	if len(repeated) == 0 {
		return
	}
	format := handlers.DuplicateOwnerReferencesWarningFormat
	if isAdmitted {
		format = handlers.DuplicateOwnerReferencesAfterMutatingAdmissionWarningFormat
	}
	warning.AddWarning(r.req.Context(), "", fmt.Sprintf(format, strings.Join(repeated, ", ")))
	object.SetOwnerReferences(kept)
}
