package write

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

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
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), object, err.Error())})
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
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
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, obj, isStrict(p.options.FieldValidation)); err != nil {
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
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
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
