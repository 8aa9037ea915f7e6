package crd

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// schemas are the structural schemas of a definition's versions, each made when
// it is first needed: most versions of most definitions never are.
type schemas struct {
	kind schema.GroupKind
	// preserveUnknown is the definition's own switch, which only definitions
	// from before apiextensions v1 can have on.
	preserveUnknown bool
	byVersion       map[string]func() (*structuralschema.Structural, error)
}

func newSchemas(crd *apiextensionsv1.CustomResourceDefinition) *schemas {
	s := &schemas{
		kind:            schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Status.AcceptedNames.Kind},
		preserveUnknown: crd.Spec.PreserveUnknownFields,
		byVersion:       map[string]func() (*structuralschema.Structural, error){},
	}
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		s.byVersion[version.Name] = sync.OnceValues(func() (*structuralschema.Structural, error) {
			return newStructural(version, s.preserveUnknown)
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
	return structural()
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
	if version.Schema == nil {
		return nil, nil
	}
	internal := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, internal, nil); err != nil {
		return nil, fmt.Errorf("schema of version %s: %w", version.Name, err)
	}
	return internal, nil
}

// form names what the stored bytes of a definition's instances depend on: the
// program, the storage version, and that version's schema, which says what is
// pruned and defaulted.
func form(program string, crd *apiextensionsv1.CustomResourceDefinition, storage *apiextensionsv1.CustomResourceDefinitionVersion) (string, error) {
	text, err := json.Marshal(storage.Schema)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(text, "\n%t", crd.Spec.PreserveUnknownFields))
	return program + "/" + crd.Spec.Group + "/" + storage.Name + "/" + hex.EncodeToString(sum[:8]), nil
}
