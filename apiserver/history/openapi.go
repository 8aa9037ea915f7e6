package history

import (
	"k8s.io/kube-openapi/pkg/common"

	"byre/apiserver/handlers/documents"
)

const modelPrefix = "dev.byre.history.v1."

// OpenAPIModelName names the type in OpenAPI documents.
func (Change) OpenAPIModelName() string { return modelPrefix + "Change" }

// OpenAPIModelName names the type in OpenAPI documents.
func (ChangeList) OpenAPIModelName() string { return modelPrefix + "ChangeList" }

// OpenAPIModelName names the type in OpenAPI documents.
func (ObjectReference) OpenAPIModelName() string { return modelPrefix + "ObjectReference" }

// OpenAPIModelName names the type in OpenAPI documents.
func (FieldChange) OpenAPIModelName() string { return modelPrefix + "FieldChange" }

// Definitions is what upstream's generator would make of the types.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	return documents.Definitions(ref,
		documents.Model{Type: Change{}, Description: "Change is one change of one object: a revision."},
		documents.Model{Type: ChangeList{}, Description: "ChangeList is a list of changes, in the order of their revisions."},
		documents.Model{Type: ObjectReference{}, Description: "ObjectReference names an object."},
		documents.Model{Type: FieldChange{}, Description: "FieldChange is the change of one field."})
}
