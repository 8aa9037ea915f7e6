package history

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Change is one change of one object: a revision.
type Change struct {
	metav1.TypeMeta `json:",inline"`
	// The name is the revision. The namespace is that of the object; it is "default" for a
	// cluster-scoped object.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Revision int64            `json:"revision"`
	Time     metav1.MicroTime `json:"time"`
	// Who is the user who made the change, and RealUser the one who impersonated that user.
	Who      string `json:"who"`
	RealUser string `json:"realUser,omitempty"`
	// Verb is that of the request, or expire.
	Verb        string `json:"verb"`
	Subresource string `json:"subresource,omitempty"`
	// Manager is the field manager of the request.
	Manager string `json:"manager,omitempty"`
	AuditID string `json:"auditID,omitempty"`
	// Object is what was changed.
	Object ObjectReference `json:"object"`
	// Replaces is the revision that the object had before; 0 if it did not exist.
	Replaces int64 `json:"replaces,omitempty"`
	// Changed are the fields that an update changed; those of metadata that every write
	// changes are left out.
	Changed []FieldChange `json:"changed,omitempty"`
	// MoreChanged is how many changed fields are left out of Changed.
	MoreChanged int64 `json:"moreChanged,omitempty"`
	// Unreadable says that the object before or after the change can't be decrypted or decoded
	// any more.
	Unreadable bool `json:"unreadable,omitempty"`
	// Before and After are the object as it was stored, without managedFields. Only a get has
	// them.
	Before *runtime.RawExtension `json:"before,omitempty"`
	After  *runtime.RawExtension `json:"after,omitempty"`
}

// ObjectReference names an object. Kind is empty if the object is unreadable.
type ObjectReference struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// FieldChange is the change of one field. Old and New are JSON, cut off with "…" if they are
// long; one of them is empty if the field did not exist.
type FieldChange struct {
	Path string `json:"path"`
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// ChangeList is a list of changes, in the order of their revisions.
type ChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Change `json:"items"`
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
