package managedfields

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Config is what New needs.
type Config struct {
	// Kind is the kind of the requests' objects. Subresource is empty for the main
	// resource.
	Kind        schema.GroupVersionKind
	Subresource string
	// Upstream is upstream's field manager of the resource.
	Upstream *upstream.FieldManager
	Creater  runtime.ObjectCreater
	// FieldSets caches the fields of created objects, for all resources, and ParsedSets those of
	// updated ones. Without them Upstream computes these.
	FieldSets  *FieldSets
	ParsedSets *ParsedSets

	// The caches need the rest. Ignored filters out the fields that the strategy resets; nil
	// filters out none.
	Types     upstream.TypeConverter
	Converter runtime.ObjectConvertor
	Ignored   fieldpath.Filter
}

// Manager computes the managed fields of the objects of one resource. It is safe for concurrent
// use.
type Manager struct {
	Config
	version string
	// shapes compiles the types, at the first create.
	shapes func() shapes
}

// New returns a Manager.
func New(c Config) *Manager {
	m := &Manager{Config: c, version: c.Kind.GroupVersion().String()}
	m.shapes = sync.OnceValue(m.compileShapes)
	return m
}

// Create sets the managed fields of an object that manager creates.
func (m *Manager) Create(obj runtime.Object, manager string) error {
	if object, err := meta.Accessor(obj); err == nil && m.FieldSets != nil && len(object.GetManagedFields()) == 0 {
		m.create(obj, manager)
		return nil
	}
	empty, err := m.Creater.New(m.Kind)
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
	if err != nil || m.ParsedSets == nil {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	after, err := meta.Accessor(obj)
	entries := before.GetManagedFields()
	if err != nil || before.GetUID() == "" || len(entries) == 0 || !m.keeps(after.GetManagedFields(), entries) {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	before.SetManagedFields(nil)
	after.SetManagedFields(nil)
	updated, err := m.update(live, obj, entries, manager)
	before.SetManagedFields(entries)
	if err != nil {
		return m.Upstream.UpdateNoErrors(live, obj, manager)
	}
	after.SetManagedFields(updated)
	return obj
}

// keeps reports whether a request does not change the managed fields. A client that sends back
// what it has read changes nothing, and a subresource ignores what it is sent.
func (m *Manager) keeps(brought, entries []metav1.ManagedFieldsEntry) bool {
	return brought == nil || m.Subresource != "" || slices.EqualFunc(brought, entries, sameEntry)
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
