package history

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/common"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/storage/changes"
)

// Change is one change of one object: a revision.
type Change struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty" description:"Standard object's metadata. The name is the revision; the namespace is that of the object, and default for a cluster-scoped object."`

	Revision    int64                 `json:"revision" description:"Revision is the revision that the change gave to the object, its resourceVersion."`
	Time        metav1.MicroTime      `json:"time" description:"Time is when the change was made; null for the fields that are older than the history, with the field selector blame."`
	Who         string                `json:"who" description:"Who is the user who made the change."`
	RealUser    string                `json:"realUser,omitempty" description:"RealUser is the user who impersonated who."`
	Verb        string                `json:"verb" description:"Verb is that of the request, or expire for what the server deleted by itself."`
	Subresource string                `json:"subresource,omitempty" description:"Subresource is that of the request, such as status or scale."`
	Manager     string                `json:"manager,omitempty" description:"Manager is the field manager of the request."`
	AuditID     string                `json:"auditID,omitempty" description:"AuditID is the ID of the request in the audit log."`
	Object      ObjectReference       `json:"object" description:"Object is what was changed."`
	Replaces    int64                 `json:"replaces,omitempty" description:"Replaces is the revision that the object had before; absent if it did not exist."`
	Changed     []FieldChange         `json:"changed,omitempty" description:"Changed are the fields that an update changed, without those of metadata that every write changes. The values of Secrets are masked."`
	MoreChanged int64                 `json:"moreChanged,omitempty" description:"MoreChanged is how many changed fields are left out of changed."`
	Unreadable  bool                  `json:"unreadable,omitempty" description:"Unreadable says that the object before or after the change can't be decrypted or decoded any more."`
	Before      *runtime.RawExtension `json:"before,omitempty" description:"Before is the object before the change, as it was stored, without managedFields. Lists leave it out."`
	After       *runtime.RawExtension `json:"after,omitempty" description:"After is the object after the change, as it was stored, without managedFields. Lists leave it out."`
}

// ObjectReference names an object.
type ObjectReference struct {
	Group     string `json:"group" description:"Group is the API group of the object; empty for the core group."`
	Resource  string `json:"resource" description:"Resource is the plural name of the object's resource."`
	Kind      string `json:"kind,omitempty" description:"Kind is absent if the object is unreadable."`
	Namespace string `json:"namespace,omitempty" description:"Namespace is absent for a cluster-scoped object."`
	Name      string `json:"name" description:"Name is the name of the object."`
	UID       string `json:"uid,omitempty" description:"UID is the UID of the object."`
}

// FieldChange is the change of one field.
type FieldChange struct {
	Path string `json:"path" description:"Path is the path of the field, such as spec.containers[name=a].image: elements of lists have their keys, or the index where they have none."`
	Old  string `json:"old,omitempty" description:"Old is the JSON of the value before, cut off if it is long; absent if the field did not exist."`
	New  string `json:"new,omitempty" description:"New is the JSON of the value after, cut off if it is long; absent if the field was removed."`
}

// ChangeList is a list of changes, in the order of their revisions.
type ChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty" description:"Standard list metadata."`

	Items []Change `json:"items" description:"Items are the changes, in the order of their revisions."`
}

// DeepCopyInto copies c to out.
func (c *Change) DeepCopyInto(out *Change) {
	*out = *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	c.Time.DeepCopyInto(&out.Time)
	out.Changed = slices.Clone(c.Changed)
	out.Before, out.After = c.Before.DeepCopy(), c.After.DeepCopy()
}

// DeepCopyObject implements runtime.Object.
func (c *Change) DeepCopyObject() runtime.Object {
	out := new(Change)
	c.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *ChangeList) DeepCopyObject() runtime.Object {
	out := &ChangeList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	if l.Items != nil {
		out.Items = make([]Change, len(l.Items))
	}
	for i := range l.Items {
		l.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// GroupName is the name of the group.
const GroupName = changes.Group

var (
	groupVersion  = schema.GroupVersion{Group: GroupName, Version: "v1"}
	groupResource = schema.GroupResource{Group: GroupName, Resource: changes.Resource}
)

// newScheme returns a scheme with the types of the group.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion, &Change{}, &ChangeList{})
	// The types of metav1 are those of the core group: with another version of them the OpenAPI
	// documents of this and of other servers would define them differently.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.WatchEvent{})
	err := scheme.AddFieldLabelConversionFunc(groupVersion.WithKind("Change"),
		func(label, value string) (string, string, error) {
			if !slices.Contains(selectable, label) {
				return "", "", fmt.Errorf("%q is not a known field selector: only %q", label, selectable)
			}
			return label, value, nil
		})
	if err != nil {
		panic(err) // the function is the only one of the kind
	}
	return scheme
}

// NewGroup returns the group that a Storage serves.
func NewGroup(s *Storage) handlers.Group {
	return handlers.NewTextGroup(groupVersion, newScheme(), map[string]rest.Storage{groupResource.Resource: s})
}

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
