package instances

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// schemas are the structural schemas of a definition's versions. Each is made at its
// first use: most versions of most definitions are never used.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknown is spec.preserveUnknownFields, which only definitions from before
	// apiextensions v1 can have set.
	preserveUnknown bool
	byVersion       map[string]*lazy[*structuralschema.Structural]
}

// newSchemas makes the schemas of crd, which is stripped; source has them.
func newSchemas(crd *apiextensionsv1.CustomResourceDefinition, source Source) *schemas {
	s := &schemas{
		kind:            schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknown: crd.Spec.PreserveUnknownFields,
		byVersion:       map[string]*lazy[*structuralschema.Structural]{},
	}
	for _, v := range crd.Spec.Versions {
		s.byVersion[v.Name] = newLazy(func() (*structuralschema.Structural, error) {
			whole, err := source()
			if err != nil {
				return nil, err
			}
			return newStructural(DefinitionVersion(whole, v.Name), s.preserveUnknown)
		})
	}
	return s
}

// of returns the schema of a version; nil for a version without one, or an unknown
// version.
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

// NewSchema returns the schema of a version of a definition that is not stripped, as Version.Schema does.
func NewSchema(crd *apiextensionsv1.CustomResourceDefinition, version string) (*structuralschema.Structural, error) {
	return newStructural(DefinitionVersion(crd, version), crd.Spec.PreserveUnknownFields)
}

func newStructural(version *apiextensionsv1.CustomResourceDefinitionVersion, preserveUnknown bool) (*structuralschema.Structural, error) {
	validation, err := internalValidation(version)
	if err != nil || validation == nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(validation.OpenAPIV3Schema)
	if preserveUnknown {
		// Such a schema need not be structural. NewStructural returns what it can use.
		return structural, nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema of version %s: %w", version.Name, err)
	}
	// PruneDefaults changes the defaults, which NewStructural shares with the definition.
	structural = structural.DeepCopy()
	if err := structuraldefaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("defaults of version %s: %w", version.Name, err)
	}
	return structural, nil
}

// internalValidation converts a version's schema to the internal type that upstream's
// validation takes; nil for a version without a schema.
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
