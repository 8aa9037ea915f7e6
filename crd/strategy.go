package crd

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

// createUpdate is what upstream's strategies of custom resources are, here.
type createUpdate interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// checks are the strategies that validate, with everything compiled that the
// schema says: the most expensive part of a definition, for writers only.
type checks struct{ whole, status createUpdate }

// strategy is upstream's, except that what validates is made by the first write.
// The embedded one knows no schema.
type strategy struct {
	createUpdate
	checks func() (createUpdate, error)
}

func (s strategy) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	checks, err := s.checks()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return checks.Validate(ctx, object)
}

func (s strategy) WarningsOnCreate(ctx context.Context, object runtime.Object) []string {
	checks, err := s.checks()
	if err != nil {
		return nil // Validate has said so
	}
	return checks.WarningsOnCreate(ctx, object)
}

func (s strategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	checks, err := s.checks()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return checks.ValidateUpdate(ctx, object, old)
}

func (s strategy) WarningsOnUpdate(ctx context.Context, object, old runtime.Object) []string {
	checks, err := s.checks()
	if err != nil {
		return nil // ValidateUpdate has said so
	}
	return checks.WarningsOnUpdate(ctx, object, old)
}

// subresources are a version's, in the form that upstream's strategies take.
type subresources struct {
	status *apiextensions.CustomResourceSubresourceStatus
	scale  *apiextensions.CustomResourceSubresourceScale
}

func newSubresources(spec *apiextensionsv1.CustomResourceDefinitionVersion) (subresources, error) {
	var s subresources
	if hasStatus(spec) {
		s.status = &apiextensions.CustomResourceSubresourceStatus{}
	}
	if !hasScale(spec) {
		return s, nil
	}
	s.scale = &apiextensions.CustomResourceSubresourceScale{}
	err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(spec.Subresources.Scale, s.scale, nil)
	return s, err
}

// newChecks compiles the schema of a version of whole, a definition with its
// schemas.
func newChecks(typer runtime.ObjectTyper, p *parts, whole *apiextensionsv1.CustomResourceDefinition, kind schema.GroupVersionKind) (checks, error) {
	spec := versionSpec(whole, kind.Version)
	internal, err := internalValidation(spec)
	if err != nil {
		return checks{}, err
	}
	var root *apiextensions.JSONSchemaProps
	if internal != nil {
		root = internal.OpenAPIV3Schema
	}
	validator, _, err := validation.NewSchemaValidator(root)
	if err != nil {
		return checks{}, err
	}
	// What is written to /status is checked against the schema of status alone.
	var statusValidator validation.SchemaValidator
	if root != nil && hasStatus(spec) {
		if status, ok := root.Properties["status"]; ok {
			if statusValidator, _, err = validation.NewSchemaValidator(&status); err != nil {
				return checks{}, err
			}
		}
	}
	structural, err := p.schemas.of(kind.Version)
	if err != nil {
		return checks{}, err
	}
	sub, err := newSubresources(spec)
	if err != nil {
		return checks{}, err
	}
	made := customresource.NewStrategy(typer, whole.Spec.Scope == apiextensionsv1.NamespaceScoped, kind,
		validator, statusValidator, structural, sub.status, sub.scale, spec.SelectableFields)
	return checks{whole: made, status: customresource.NewStatusStrategy(made)}, nil
}
