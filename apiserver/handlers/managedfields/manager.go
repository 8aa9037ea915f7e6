package managedfields

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
)

// Manager computes the managed fields of the objects of one resource. It is safe for concurrent
// use.
type Manager struct {
	// Upstream computes what Tracker and Updater leave to it.
	Upstream *upstream.FieldManager
	// New makes an object of the resource's kind.
	New func() (runtime.Object, error)
	// Tracker computes the fields of created objects, and Updater those of updated ones. nil
	// leaves all to Upstream.
	Tracker *Tracker
	Updater *Updater
}

// Create sets the managed fields of an object that manager creates.
func (m *Manager) Create(obj runtime.Object, manager string) error {
	if object, err := meta.Accessor(obj); err == nil && m.Tracker != nil && len(object.GetManagedFields()) == 0 {
		m.Tracker.Track(obj, manager)
		return nil
	}
	empty, err := m.New()
	if err != nil {
		return err
	}
	m.Upstream.UpdateNoErrors(empty, obj, manager)
	return nil
}

// Update sets the managed fields of an object that manager makes of live, and returns the object.
// The object has the managed fields that the request brings: none, or those of live, or others.
func (m *Manager) Update(live, obj runtime.Object, manager string) runtime.Object {
	before, err := meta.Accessor(live)
	if err != nil || m.Updater == nil {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	after, err := meta.Accessor(obj)
	entries := before.GetManagedFields()
	if err != nil || before.GetUID() == "" || len(entries) == 0 || !m.keeps(after.GetManagedFields(), entries) {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	before.SetManagedFields(nil)
	after.SetManagedFields(nil)
	m.Updater.Update(live, obj, entries, manager)
	return obj
}

// keeps reports whether a request does not change the managed fields. A client that sends back
// what it has read changes nothing, and a subresource ignores what it is sent.
func (m *Manager) keeps(brought, entries []metav1.ManagedFieldsEntry) bool {
	return brought == nil || m.Updater.Subresource != "" || slices.EqualFunc(brought, entries, sameEntry)
}

func sameEntry(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
		a.Time.Equal(b.Time) && a.FieldsType == b.FieldsType && a.FieldsV1 != nil && b.FieldsV1 != nil && a.FieldsV1.Equal(*b.FieldsV1)
}

// Apply applies a configuration to live. It fails if the configuration changes fields of other
// managers, unless force is set.
func (m *Manager) Apply(live, configuration runtime.Object, manager string, force bool) (runtime.Object, error) {
	return m.Upstream.Apply(live, configuration, manager, force)
}
