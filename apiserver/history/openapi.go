package history

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
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

// WithDefinitions returns a function that returns the definitions of another, and those of the
// types of this package.
func WithDefinitions(other common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := maps.Clone(other(ref))
		maps.Copy(all, definitions(ref))
		return all
	}
}

// definitions is what upstream's generator would make of the types.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	meta := map[string]spec.Schema{
		"apiVersion": property("string", "", "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"),
		"kind":       property("string", "", "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"),
	}
	change := map[string]spec.Schema{
		"metadata":    reference(ref, metav1.ObjectMeta{}.OpenAPIModelName(), "Standard object's metadata. The name is the revision; the namespace is that of the object, and default for a cluster-scoped object."),
		"revision":    property("integer", "int64", "Revision is the revision that the change gave to the object, its resourceVersion."),
		"time":        reference(ref, metav1.MicroTime{}.OpenAPIModelName(), "Time is when the change was made."),
		"who":         property("string", "", "Who is the user who made the change."),
		"realUser":    property("string", "", "RealUser is the user who impersonated who."),
		"verb":        property("string", "", "Verb is that of the request, or expire for what the server deleted by itself."),
		"subresource": property("string", "", "Subresource is that of the request, such as status or scale."),
		"manager":     property("string", "", "Manager is the field manager of the request."),
		"auditID":     property("string", "", "AuditID is the ID of the request in the audit log."),
		"object":      reference(ref, ObjectReference{}.OpenAPIModelName(), "Object is what was changed."),
		"replaces":    property("integer", "int64", "Replaces is the revision that the object had before; absent if it did not exist."),
		"changed":     list(ref, FieldChange{}.OpenAPIModelName(), "Changed are the fields that an update changed, without those of metadata that every write changes."),
		"moreChanged": property("integer", "int64", "MoreChanged is how many changed fields are left out of changed."),
		"unreadable":  property("boolean", "", "Unreadable says that the object before or after the change can't be decrypted or decoded any more."),
		"before":      reference(ref, runtime.RawExtension{}.OpenAPIModelName(), "Before is the object before the change, as it was stored, without managedFields. Lists leave it out."),
		"after":       reference(ref, runtime.RawExtension{}.OpenAPIModelName(), "After is the object after the change, as it was stored, without managedFields. Lists leave it out."),
	}
	maps.Copy(change, meta)
	changes := map[string]spec.Schema{
		"metadata": reference(ref, metav1.ListMeta{}.OpenAPIModelName(), "Standard list metadata."),
		"items":    list(ref, Change{}.OpenAPIModelName(), "Items are the changes, in the order of their revisions."),
	}
	maps.Copy(changes, meta)
	object := map[string]spec.Schema{
		"group":     property("string", "", "Group is the API group of the object; empty for the core group."),
		"resource":  property("string", "", "Resource is the plural name of the object's resource."),
		"kind":      property("string", "", "Kind is absent if the object is unreadable."),
		"namespace": property("string", "", "Namespace is absent for a cluster-scoped object."),
		"name":      property("string", "", "Name is the name of the object."),
		"uid":       property("string", "", "UID is the UID of the object."),
	}
	field := map[string]spec.Schema{
		"path": property("string", "", "Path is the path of the field, such as spec.containers[0].image."),
		"old":  property("string", "", "Old is the JSON of the value before, cut off if it is long; absent if the field did not exist."),
		"new":  property("string", "", "New is the JSON of the value after, cut off if it is long; absent if the field was removed."),
	}
	return map[string]common.OpenAPIDefinition{
		Change{}.OpenAPIModelName(): definition("Change is one change of one object: a revision.", change,
			[]string{"revision", "time", "who", "verb", "object"},
			metav1.ObjectMeta{}.OpenAPIModelName(), metav1.MicroTime{}.OpenAPIModelName(), runtime.RawExtension{}.OpenAPIModelName(),
			ObjectReference{}.OpenAPIModelName(), FieldChange{}.OpenAPIModelName()),
		ChangeList{}.OpenAPIModelName(): definition("ChangeList is a list of changes, in the order of their revisions.", changes,
			[]string{"items"}, metav1.ListMeta{}.OpenAPIModelName(), Change{}.OpenAPIModelName()),
		ObjectReference{}.OpenAPIModelName(): definition("ObjectReference names an object.", object, []string{"group", "resource", "name"}),
		FieldChange{}.OpenAPIModelName():     definition("FieldChange is the change of one field.", field, []string{"path"}),
	}
}

func definition(description string, properties map[string]spec.Schema, required []string, uses ...string) common.OpenAPIDefinition {
	return common.OpenAPIDefinition{
		Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"object"}, Properties: properties, Required: required,
		}},
		Dependencies: uses,
	}
}

// property is a field of a scalar type.
func property(kind, format, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{kind}, Format: format}}
}

func reference(ref common.ReferenceCallback, model, description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Ref: ref(model)}}
}

func list(ref common.ReferenceCallback, model, description string) spec.Schema {
	return spec.Schema{
		VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-list-type": "atomic"}},
		SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"array"},
			Items: &spec.SchemaOrArray{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(model)}}},
		},
	}
}
