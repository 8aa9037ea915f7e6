package instances

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// updateStrategy is the part of upstream's strategies of custom resources that the
// registry calls to create and update.
type updateStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// strategies are the strategies of a version and of its status subresource.
type strategies struct{ main, status updateStrategy }

// lazyStrategy is a strategy without schemas that makes the one that validates at the
// first write. Compiling a schema is the most expensive part of serving a definition, and
// readers do not need it.
type lazyStrategy struct {
	updateStrategy
	validating func() (updateStrategy, error)
}

func (s lazyStrategy) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	validating, err := s.validating()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validating.Validate(ctx, object)
}

func (s lazyStrategy) WarningsOnCreate(ctx context.Context, object runtime.Object) []string {
	validating, err := s.validating()
	if err != nil {
		return nil // Validate has reported it
	}
	return validating.WarningsOnCreate(ctx, object)
}

func (s lazyStrategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	validating, err := s.validating()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validating.ValidateUpdate(ctx, object, old)
}

func (s lazyStrategy) WarningsOnUpdate(ctx context.Context, object, old runtime.Object) []string {
	validating, err := s.validating()
	if err != nil {
		return nil // ValidateUpdate has reported it
	}
	return validating.WarningsOnUpdate(ctx, object, old)
}

// subresources are a version's subresources as upstream's strategies take them.
type subresources struct {
	status *apiextensions.CustomResourceSubresourceStatus
	scale  *apiextensions.CustomResourceSubresourceScale
}

func newSubresources(spec *apiextensionsv1.CustomResourceDefinitionVersion) (subresources, error) {
	var s subresources
	if HasStatus(spec) {
		s.status = &apiextensions.CustomResourceSubresourceStatus{}
	}
	if !HasScale(spec) {
		return s, nil
	}
	s.scale = &apiextensions.CustomResourceSubresourceScale{}
	err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(spec.Subresources.Scale, s.scale, nil)
	return s, err
}

// newValidating compiles the schema of a version of whole, a definition with its
// schemas.
func newValidating(typer runtime.ObjectTyper, schemas *schemas, whole *apiextensionsv1.CustomResourceDefinition, kind schema.GroupVersionKind) (strategies, error) {
	spec := DefinitionVersion(whole, kind.Version)
	internal, err := internalValidation(spec)
	if err != nil {
		return strategies{}, err
	}
	var root *apiextensions.JSONSchemaProps
	if internal != nil {
		root = internal.OpenAPIV3Schema
	}
	validator, _, err := validation.NewSchemaValidator(root)
	if err != nil {
		return strategies{}, err
	}
	// A write to /status is validated against the schema of status alone.
	var statusValidator validation.SchemaValidator
	if root != nil && HasStatus(spec) {
		if status, ok := root.Properties["status"]; ok {
			if statusValidator, _, err = validation.NewSchemaValidator(&status); err != nil {
				return strategies{}, err
			}
		}
	}
	structural, err := schemas.of(kind.Version)
	if err != nil {
		return strategies{}, err
	}
	sub, err := newSubresources(spec)
	if err != nil {
		return strategies{}, err
	}
	made := customresource.NewStrategy(typer, whole.Spec.Scope == apiextensionsv1.NamespaceScoped, kind,
		validator, statusValidator, structural, sub.status, sub.scale, spec.SelectableFields)
	return strategies{main: made, status: customresource.NewStatusStrategy(made)}, nil
}
