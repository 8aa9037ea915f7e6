package history

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/openapi"
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
	meta := openapi.TypeMeta()
	change := map[string]spec.Schema{
		"metadata":    openapi.Reference(ref, metav1.ObjectMeta{}.OpenAPIModelName(), "Standard object's metadata. The name is the revision; the namespace is that of the object, and default for a cluster-scoped object."),
		"revision":    openapi.Property("integer", "int64", "Revision is the revision that the change gave to the object, its resourceVersion."),
		"time":        openapi.Reference(ref, metav1.MicroTime{}.OpenAPIModelName(), "Time is when the change was made."),
		"who":         openapi.Property("string", "", "Who is the user who made the change."),
		"realUser":    openapi.Property("string", "", "RealUser is the user who impersonated who."),
		"verb":        openapi.Property("string", "", "Verb is that of the request, or expire for what the server deleted by itself."),
		"subresource": openapi.Property("string", "", "Subresource is that of the request, such as status or scale."),
		"manager":     openapi.Property("string", "", "Manager is the field manager of the request."),
		"auditID":     openapi.Property("string", "", "AuditID is the ID of the request in the audit log."),
		"object":      openapi.Reference(ref, ObjectReference{}.OpenAPIModelName(), "Object is what was changed."),
		"replaces":    openapi.Property("integer", "int64", "Replaces is the revision that the object had before; absent if it did not exist."),
		"changed":     openapi.List(ref, FieldChange{}.OpenAPIModelName(), "Changed are the fields that an update changed, without those of metadata that every write changes."),
		"moreChanged": openapi.Property("integer", "int64", "MoreChanged is how many changed fields are left out of changed."),
		"unreadable":  openapi.Property("boolean", "", "Unreadable says that the object before or after the change can't be decrypted or decoded any more."),
		"before":      openapi.Reference(ref, runtime.RawExtension{}.OpenAPIModelName(), "Before is the object before the change, as it was stored, without managedFields. Lists leave it out."),
		"after":       openapi.Reference(ref, runtime.RawExtension{}.OpenAPIModelName(), "After is the object after the change, as it was stored, without managedFields. Lists leave it out."),
	}
	maps.Copy(change, meta)
	changes := map[string]spec.Schema{
		"metadata": openapi.Reference(ref, metav1.ListMeta{}.OpenAPIModelName(), "Standard list metadata."),
		"items":    openapi.List(ref, Change{}.OpenAPIModelName(), "Items are the changes, in the order of their revisions."),
	}
	maps.Copy(changes, meta)
	object := map[string]spec.Schema{
		"group":     openapi.Property("string", "", "Group is the API group of the object; empty for the core group."),
		"resource":  openapi.Property("string", "", "Resource is the plural name of the object's resource."),
		"kind":      openapi.Property("string", "", "Kind is absent if the object is unreadable."),
		"namespace": openapi.Property("string", "", "Namespace is absent for a cluster-scoped object."),
		"name":      openapi.Property("string", "", "Name is the name of the object."),
		"uid":       openapi.Property("string", "", "UID is the UID of the object."),
	}
	field := map[string]spec.Schema{
		"path": openapi.Property("string", "", "Path is the path of the field, such as spec.containers[0].image."),
		"old":  openapi.Property("string", "", "Old is the JSON of the value before, cut off if it is long; absent if the field did not exist."),
		"new":  openapi.Property("string", "", "New is the JSON of the value after, cut off if it is long; absent if the field was removed."),
	}
	return map[string]common.OpenAPIDefinition{
		Change{}.OpenAPIModelName(): openapi.Definition("Change is one change of one object: a revision.", change,
			[]string{"revision", "time", "who", "verb", "object"},
			metav1.ObjectMeta{}.OpenAPIModelName(), metav1.MicroTime{}.OpenAPIModelName(), runtime.RawExtension{}.OpenAPIModelName(),
			ObjectReference{}.OpenAPIModelName(), FieldChange{}.OpenAPIModelName()),
		ChangeList{}.OpenAPIModelName(): openapi.Definition("ChangeList is a list of changes, in the order of their revisions.", changes,
			[]string{"items"}, metav1.ListMeta{}.OpenAPIModelName(), Change{}.OpenAPIModelName()),
		ObjectReference{}.OpenAPIModelName(): openapi.Definition("ObjectReference names an object.", object, []string{"group", "resource", "name"}),
		FieldChange{}.OpenAPIModelName():     openapi.Definition("FieldChange is the change of one field.", field, []string{"path"}),
	}
}
