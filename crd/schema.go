package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// schemas are the structural schemas of a definition's versions, each made when
// it is needed: most versions of most definitions never are.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknown is the definition's own switch, which only definitions
	// from before apiextensions v1 can have on.
	preserveUnknown bool
	byVersion       map[string]*lazy[*structuralschema.Structural]
}

// newSchemas makes the schemas of crd, which is without them: from has them.
func newSchemas(crd *apiextensionsv1.CustomResourceDefinition, from *source) *schemas {
	s := &schemas{
		kind:            schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknown: crd.Spec.PreserveUnknownFields,
		byVersion:       map[string]*lazy[*structuralschema.Structural]{},
	}
	for _, v := range crd.Spec.Versions {
		s.byVersion[v.Name] = newLazy(func() (*structuralschema.Structural, error) {
			whole, err := from.definition()
			if err != nil {
				return nil, err
			}
			return newStructural(versionSpec(whole, v.Name), s.preserveUnknown)
		})
	}
	return s
}

// of returns the schema of a version. It is nil for a version that has none, or
// that does not exist.
func (s *schemas) of(version string) (*structuralschema.Structural, error) {
	structural, ok := s.byVersion[version]
	if !ok {
		return nil, nil
	}
	return structural.get()
}

func (s *schemas) release() {
	for _, structural := range s.byVersion {
		structural.release()
	}
}

func newStructural(version *apiextensionsv1.CustomResourceDefinitionVersion, preserveUnknown bool) (*structuralschema.Structural, error) {
	validation, err := internalValidation(version)
	if err != nil || validation == nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(validation.OpenAPIV3Schema)
	if preserveUnknown {
		// Such a schema need not be structural; what can be used of it is.
		return structural, nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema of version %s: %w", version.Name, err)
	}
	// Defaults are shared with the definition that the schema was made of.
	structural = structural.DeepCopy()
	if err := structuraldefaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("defaults of version %s: %w", version.Name, err)
	}
	return structural, nil
}

// internalValidation is a version's schema in the form that upstream's
// validation takes; nil for a version without one.
func internalValidation(version *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.CustomResourceValidation, error) {
	if version == nil || version.Schema == nil {
		return nil, nil
	}
	internal := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, internal, nil); err != nil {
		return nil, fmt.Errorf("schema of version %s: %w", version.Name, err)
	}
	return internal, nil
}
