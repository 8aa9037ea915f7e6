package write

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/registry/rest"
	kjson "sigs.k8s.io/json"
)

// Patch serves the patches of a storage, and applies.
func (h *Handlers) Patch(s rest.Patcher) http.HandlerFunc {
	return h.serve("Patch", func(r *write) error { return r.patch(s) })
}

func (r *write) patch(patcher rest.Patcher) error {
	contentType, _, _ := strings.Cut(r.req.Header.Get("Content-Type"), ";")
	if !slices.Contains(r.PatchTypes, contentType) {
		return negotiation.NewUnsupportedMediaTypeError(r.PatchTypes)
	}
	if err := r.findObject(); err != nil {
		return err
	}
	if err := r.negotiate(); err != nil {
		return err
	}
	body, err := r.readBody(requestmetrics.Patch)
	if err != nil {
		return err
	}
	p := &patch{write: r, body: body, media: types.PatchType(contentType), options: &metav1.PatchOptions{}}
	if err := r.decodeOptions(p.options); err != nil {
		return err
	}
	if err := checkOptions("PatchOptions", &p.options.TypeMeta,
		validation.ValidatePatchOptions(p.options, p.media)); err != nil {
		return err
	}
	document, err := p.document()
	if err != nil {
		return err
	}
	audit.LogRequestPatch(r.req.Context(), document)
	if err := p.prepare(patcher); err != nil {
		return err
	}

	p.manager = p.options.FieldManager // of an apply: the options are valid only with one
	verb := "apply"
	if !p.isApply() {
		p.manager, verb = r.manager(p.options.FieldManager), ""
	}
	r.recordAs(verb, p.manager)
	options := &metav1.UpdateOptions{
		TypeMeta:        metav1.TypeMeta{Kind: "UpdateOptions", APIVersion: metav1.SchemeGroupVersion.String()},
		DryRun:          p.options.DryRun,
		FieldManager:    p.options.FieldManager,
		FieldValidation: p.options.FieldValidation,
	}
	// The storage calls this for each attempt, with the object that it has then.
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, live runtime.Object) (runtime.Object, error) {
		obj, err := p.patched(live)
		if err != nil {
			return nil, err
		}
		return obj, r.admitUpdate(obj, live, options)
	})
	result, created, err := patcher.Update(r.ctx, r.name, info, r.createValidation(options), r.updateValidation(options),
		p.isApply(), options)
	return r.answerUpdate(result, created, err)
}

// patch is a request that patches or applies.
type patch struct {
	*write
	body    []byte
	media   types.PatchType
	options *metav1.PatchOptions
	manager string

	new   func() runtime.Object // makes an empty object of the internal version
	codec runtime.Codec
	// reference is the object whose tags say how lists are merged, for a strategic merge.
	reference runtime.Object
}

func (p *patch) isApply() bool {
	return p.media == types.ApplyYAMLPatchType || p.media == types.ApplyCBORPatchType
}

// document returns the patch as JSON, which goes into the audit log.
func (p *patch) document() ([]byte, error) {
	var document []byte
	var err error
	switch p.media {
	case types.ApplyCBORPatchType:
		var value any
		if err := cbor.Unmarshal(p.body, &value); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		document, err = json.Marshal(value)
	case types.ApplyYAMLPatchType:
		document, err = yaml.ToJSON(p.body)
	default:
		if !json.Valid(p.body) {
			return nil, apierrors.NewBadRequest("invalid JSON patch")
		}
		return p.body, nil
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	return document, nil
}

// prepare makes what all attempts have in common.
func (p *patch) prepare(patcher rest.Patcher) (err error) {
	s := p.Scope
	p.new = patcher.New
	switch p.media {
	case types.StrategicMergePatchType:
		p.reference, err = s.UnsafeConvertor.ConvertToVersion(patcher.New(), s.Kind.GroupVersion())
		return err
	case types.JSONPatchType, types.MergePatchType:
		info, ok := runtime.SerializerInfoForMediaType(s.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
		if !ok {
			return errors.New("no serializer defined for " + runtime.ContentTypeJSON)
		}
		decoded := info.Serializer
		if isStrict(p.options.FieldValidation) {
			decoded = info.StrictSerializer
		}
		p.codec = runtime.NewCodec(s.Serializer.EncoderForVersion(info.Serializer, s.Kind.GroupVersion()),
			s.Serializer.DecoderToVersion(decoded, s.HubGroupVersion))
	}
	return nil
}

// patched returns the object that the patch makes of live, with its managed fields.
func (p *patch) patched(live runtime.Object) (runtime.Object, error) {
	exists, err := hasUID(live)
	if err != nil {
		return nil, err
	}
	var obj runtime.Object
	switch {
	case p.isApply():
		obj, err = p.apply(live, exists)
	case !exists:
		return nil, apierrors.NewNotFound(p.Scope.Resource.GroupResource(), p.name)
	default:
		obj, err = p.merge(live)
	}
	if err != nil {
		return nil, err
	}
	isNamed, err := hasUID(obj)
	if err != nil {
		return nil, err
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return obj, p.checkName(obj)
	}
	if isNamed && !exists {
		return nil, apierrors.NewConflict(p.Scope.Resource.GroupResource(), p.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", object.GetUID()))
	}
	if err := p.setNamespace(object); err != nil {
		return nil, err
	}
	return obj, p.checkName(obj)
}

// merge applies the patch to live.
//
// What upstream does: the managed fields are a part of the object that is encoded, merged and
// decoded. What is done instead: where the patch can't name managed fields, it is merged into live
// without them. What it relies on: a merge leaves alone what the patch does not name;
// TestUpdate_HasManagedFieldsOfUpstream compares the results. What it earns: with managedfields.Manager.Update
// a third of the processor time of a patch of a Pod's status (BenchmarkStatusPatch in handlers).
func (p *patch) merge(live runtime.Object) (runtime.Object, error) {
	object, err := meta.Accessor(live)
	if err != nil || !p.leavesManagedFields() {
		return p.mergeWhole(live)
	}
	entries := object.GetManagedFields()
	object.SetManagedFields(nil)
	obj, err := p.mergeInto(live)
	object.SetManagedFields(entries)
	if err != nil {
		return p.mergeWhole(live) // the error may show the object
	}
	return p.Fields.Update(live, obj, p.manager), nil
}

func (p *patch) mergeWhole(live runtime.Object) (runtime.Object, error) {
	obj, err := p.mergeInto(live)
	if err != nil {
		return nil, err
	}
	return p.Fields.Update(live, obj, p.manager), nil
}

// leavesManagedFields reports whether the patch leaves managed fields alone. A JSON patch may
// copy and test whole objects. A name that is written with escapes counts as theirs.
func (p *patch) leavesManagedFields() bool {
	return p.media != types.JSONPatchType && !bytes.Contains(p.body, []byte("managedFields")) &&
		!bytes.Contains(p.body, []byte(`\u`))
}

// maxOperations bounds the operations of a JSON patch; upstream's value.
const maxOperations = 10_000

// mergeInto returns what the patch makes of live, without managed fields of its own.
func (p *patch) mergeInto(live runtime.Object) (runtime.Object, error) {
	if p.media == types.StrategicMergePatchType {
		return p.mergeStrategic(live)
	}
	before, err := runtime.Encode(p.codec, live)
	if err != nil {
		return nil, err
	}
	mergeJSON := p.mergeJSON
	if p.media == types.JSONPatchType {
		mergeJSON = p.executeJSON
	}
	after, unknown, err := mergeJSON(before)
	if err != nil {
		return nil, err
	}
	obj := p.new()
	if err := runtime.DecodeInto(p.codec, after, obj); err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, invalid(string(after), err)
		}
		unknown = append(unknown, strict.Errors()...)
	}
	return obj, p.report(unknown, func() string { return string(after) })
}

// report warns of unknown and repeated fields, or returns an error with the object that has
// them.
func (p *patch) report(unknown []error, object func() string) error {
	if len(unknown) == 0 {
		return nil
	}
	if p.options.FieldValidation == metav1.FieldValidationStrict {
		return invalid(object(), runtime.NewStrictDecodingError(unknown))
	}
	p.warn(unknown)
	return nil
}

func invalid(object string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "",
		field.ErrorList{field.Invalid(field.NewPath("patch"), object, err.Error())})
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(),
		0, false)
}

// jsonPatchOp has the members that an operation of a JSON patch may have.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// executeJSON executes a JSON patch. It returns the errors of unknown fields in the patch.
func (p *patch) executeJSON(before []byte) (after []byte, unknown []error, err error) {
	if isStrict(p.options.FieldValidation) {
		var operations []jsonPatchOp
		if unknown, err = kjson.UnmarshalStrict(p.body, &operations); err != nil {
			// The decoder names the Go type, and clients have seen upstream's.
			text := strings.ReplaceAll(err.Error(), "write.jsonPatchOp", "handlers.jsonPatchOp")
			return nil, nil, apierrors.NewBadRequest("error decoding patch: " + text)
		}
		for i, err := range unknown {
			unknown[i] = fmt.Errorf("json patch %w", err)
		}
	}
	operations, err := jsonpatch.DecodePatch(p.body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(operations) > maxOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(operations)))
	}
	if after, err = operations.Apply(before); err != nil {
		return nil, nil, unprocessable(err)
	}
	return after, unknown, nil
}

// mergeJSON merges a JSON merge patch. It returns the errors of repeated fields in the patch.
func (p *patch) mergeJSON(before []byte) (after []byte, unknown []error, err error) {
	if isStrict(p.options.FieldValidation) {
		if unknown, err = kjson.UnmarshalStrict(p.body, &map[string]any{}); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	after, err = jsonpatch.MergePatch(before, p.body)
	if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return after, unknown, err
}

// mergeStrategic merges a strategic merge patch into the object in the request's version.
func (p *patch) mergeStrategic(live runtime.Object) (runtime.Object, error) {
	s := p.Scope
	versioned, err := s.UnsafeConvertor.ConvertToVersion(live, s.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(versioned)
	if err != nil {
		return nil, err
	}
	changes := map[string]any{}
	var unknown []error
	if isStrict(p.options.FieldValidation) {
		unknown, err = kjson.UnmarshalStrict(p.body, &changes)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.body, &changes)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	after, err := strategicpatch.StrategicMergeMapPatch(before, changes, p.reference)
	if err != nil {
		return nil, strategicError(err)
	}
	obj, err := s.Creater.New(s.Kind)
	if err != nil {
		return nil, err
	}
	shown := func() string { return fmt.Sprintf("%+v", changes) }
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, obj,
		isStrict(p.options.FieldValidation)); err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, invalid(shown(), err)
		}
		unknown = append(unknown, strict.Errors()...)
	}
	if err := p.report(unknown, shown); err != nil {
		return nil, err
	}
	s.Defaulter.Default(obj)
	return s.UnsafeConvertor.ConvertToVersion(obj, s.HubGroupVersion)
}

func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys),
		errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return unprocessable(err)
	default:
		return err
	}
}

// apply applies the configuration in the body, to a new object if there is none.
func (p *patch) apply(live runtime.Object, exists bool) (runtime.Object, error) {
	if !exists {
		var err error
		if live, err = p.Scope.Creater.New(p.Scope.Kind); err != nil {
			return nil, fmt.Errorf("failed to create new object: %w", err)
		}
	}
	// CBOR refuses repeated keys in any case.
	decode, decodeStrictly := cbor.Unmarshal, cbor.Unmarshal
	if p.media == types.ApplyYAMLPatchType {
		decode, decodeStrictly = yaml.Unmarshal, yaml.UnmarshalStrict
	}
	configuration := &unstructured.Unstructured{Object: map[string]any{}}
	if err := decode(p.body, &configuration.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	obj, err := p.Fields.Apply(live, configuration, p.manager, p.options.Force != nil && *p.options.Force)
	if err != nil {
		return nil, err
	}
	if isStrict(p.options.FieldValidation) {
		if err := decodeStrictly(p.body, &map[string]any{}); err != nil {
			if p.options.FieldValidation == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
			}
			p.warn([]error{err})
		}
	}
	return obj, nil
}
