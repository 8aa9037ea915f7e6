package managedfields_test

import (
	"fmt"
	"math/rand"
	"reflect"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
)

// updaterOf returns a Manager and upstream's field manager with upstream's own
// converter. Both ignore the same field.
func updaterOf(
	t testing.TB, kind schema.GroupVersionKind, subresource, ignored string,
) (*managedfields.Manager, *upstream.FieldManager) {
	t.Helper()
	version := fieldpath.APIVersion(kind.GroupVersion().String())
	filters := fieldpath.NewExcludeFilterSetMap(
		map[fieldpath.APIVersion]*fieldpath.Set{version: fieldpath.NewSet(fieldpath.MakePathOrDie(ignored))})
	var managers []*upstream.FieldManager
	for _, types := range []upstream.TypeConverter{converter(), upstreamConverter()} {
		manager, err := upstream.NewDefaultFieldManager(types, unsafeConvertor, legacyscheme.Scheme, legacyscheme.Scheme,
			kind, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, subresource, filters)
		if err != nil {
			t.Fatal(err)
		}
		managers = append(managers, manager)
	}
	return managedfields.New(managedfields.Config{
		Kind: kind, Subresource: subresource, Upstream: managers[0], Types: converter(), Converter: unsafeConvertor,
		Creater: legacyscheme.Scheme, Ignored: filters[version], ParsedSets: managedfields.NewParsedSets(1 << 20),
	}), managers[1]
}

// updated returns object with the managed fields that a Manager sets. It checks that the
// live object keeps its managed fields.
func updated(t testing.TB, u *managedfields.Manager, live, object runtime.Object, by string) runtime.Object {
	t.Helper()
	live, object = live.DeepCopyObject(), object.DeepCopyObject()
	entries := mustAccess(t, live).GetManagedFields()
	mustAccess(t, object).SetManagedFields(nil)
	object = u.Update(live, object, by)
	if got := mustAccess(t, live).GetManagedFields(); !reflect.DeepEqual(got, entries) {
		t.Fatalf("the live object has the managed fields %v, had %v", got, entries)
	}
	return object
}

// FuzzUpdater: the managed fields of an object that several managers change again and
// again, of the main resource and of its status, are those that upstream computes.
func FuzzUpdater(f *testing.F) {
	fuzzKinds(f, func(t *testing.T, kind schema.GroupVersionKind, object runtime.Object, random *rand.Rand) {
		ours, theirs := updaterOf(t, kind, "", "status")
		ourStatus, theirStatus := updaterOf(t, kind, "status", "spec")
		empty, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		live := theirs.UpdateNoErrors(empty, object, "a")
		mustAccess(t, live).SetUID("some")
		for i := range 10 {
			entries := mustAccess(t, live).GetManagedFields()
			if len(entries) == 0 {
				return // there is nothing that anybody manages
			}
			if i == 4 { // as after a server-side apply
				entries[0].Operation = metav1.ManagedFieldsOperationApply
			}
			object = live.DeepCopyObject()
			vary(random, reflect.ValueOf(object).Elem(), 0.2/float64(i+1))
			mustAccess(t, object).SetUID("some")
			mustAccess(t, object).SetManagedFields(entries)
			by, our, their := []string{"a", "b", ""}[i%3], ours, theirs
			if i%2 == 1 {
				our, their = ourStatus, theirStatus
			}
			next := their.UpdateNoErrors(live.DeepCopyObject(), object.DeepCopyObject(), by)
			want := fieldsOf(t, next)
			if got := fieldsOf(t, updated(t, our, live, object, by)); got != want {
				t.Fatalf("%v, update %d:\ngot  %s\nwant %s", kind, i, got, want)
			}
			live = next
		}
	})
}

// TestUpdater_LeavesTheUnusualToUpstream: where there are entries of other versions,
// too many managers, or entries that are not in upstream's form, the result is what
// upstream computes.
func TestUpdater_LeavesTheUnusualToUpstream(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	ours, theirs := updaterOf(t, kind, "", "status")
	at := metav1.NewTime(time.Now().Add(-time.Hour).UTC().Truncate(time.Second))
	entry := func(manager, fields string, change func(*metav1.ManagedFieldsEntry)) metav1.ManagedFieldsEntry {
		e := metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Time: &at}
		if change != nil {
			change(&e)
		}
		return e
	}
	var many []metav1.ManagedFieldsEntry
	for i := range 10 {
		many = append(many, entry(fmt.Sprint("m", i), fmt.Sprintf(`{"f:metadata":{"f:labels":{"f:l%d":{}}}}`, i), nil))
	}
	const labels, node = `{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`, `{"f:spec":{"f:nodeName":{}}}`
	for name, entries := range map[string][]metav1.ManagedFieldsEntry{
		"usual":            {entry("one", labels, nil), entry("two", node, nil)},
		"the same manager": {entry("tester", labels, nil)},
		"another version": {entry("one", labels, func(e *metav1.ManagedFieldsEntry) {
			e.APIVersion = "v0"
		}), entry("two", node, nil)},
		"another operation": {entry("one", labels, func(e *metav1.ManagedFieldsEntry) { e.Operation = "Destroy" })},
		"another type":      {entry("one", labels, func(e *metav1.ManagedFieldsEntry) { e.FieldsType = "FieldsV2" })},
		"twice":             {entry("one", labels, nil), entry("one", node, nil)},
		"no fields": {entry("one", labels, func(e *metav1.ManagedFieldsEntry) {
			e.FieldsV1 = nil
		}), entry("two", node, nil)},
		"an empty set": {entry("one", `{}`, nil), entry("two", node, nil)},
		"not JSON":     {entry("one", `{`, nil)},
		"another order": {entry("one", `{"f:spec":{"f:nodeName":{}},"f:metadata":{"f:labels":{"f:b":{}, "f:a":{}}}}`,
			nil)},
		"escapes":        {entry("one", `{"f:metadata":{"f:labels":{"f:\u0061pp":{}}}}`, nil)},
		"managed fields": {entry("one", `{"f:metadata":{"f:managedFields":{},"f:name":{}}}`, nil)},
		"an atomic's part": {entry("one",
			`{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:command":{"v:\"x\"":{}}}}}}`, nil)},
		"as many as there are": many,
	} {
		live, object := samplePod("a", "x"), samplePod("a", "y")
		live.UID, object.UID = "some", "some"
		live.ManagedFields, object.ManagedFields = entries, entries
		want := theirs.UpdateNoErrors(live.DeepCopy(), object.DeepCopy(), "tester").(*core.Pod)
		got := updated(t, ours, live, object, "tester").(*core.Pod)
		for _, pod := range []*core.Pod{want, got} {
			for i := range pod.ManagedFields {
				if e := &pod.ManagedFields[i]; e.Time != nil && !e.Time.Equal(&at) {
					e.Time = &metav1.Time{}
				}
			}
		}
		if !reflect.DeepEqual(got.ManagedFields, want.ManagedFields) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got.ManagedFields, want.ManagedFields)
		}
	}
}

// BenchmarkUpdater changes the status of a Pod for the second time.
func BenchmarkUpdater(b *testing.B) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	pod := samplePod("a", "x")
	pod.Spec.Containers = append(pod.Spec.Containers, *pod.Spec.Containers[0].DeepCopy())
	pod.Spec.Containers[1].Name = "d"
	ours, theirs := updaterOf(b, kind, "status", "spec")
	live := managerOf(b, converter(), kind, "").UpdateNoErrors(&corev1.Pod{}, pod, "creator").(*core.Pod)
	live.UID = "some"
	patched := live.DeepCopy()
	patched.Status.Message = "first"
	live = theirs.UpdateNoErrors(live, patched, "tester").(*core.Pod)
	patched = live.DeepCopy()
	patched.Status.Message = "second"
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			object := *patched
			theirs.UpdateNoErrors(live, &object, "tester")
		}
	})
	b.Run("kept", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			before, object := *live, *patched
			object.ManagedFields = nil
			ours.Update(&before, &object, "tester")
		}
	})
}

// upstreamConverter validates each object and compares all of its fields.
var upstreamConverter = sync.OnceValue(func() upstream.TypeConverter {
	var names []string
	for _, kind := range kinds() {
		object, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			panic(err)
		}
		names = append(names, util.GetCanonicalTypeName(object))
	}
	schemas, err := documents.NewModels("test", generated.GetOpenAPIDefinitions, legacyscheme.Scheme).Schemas(names...)()
	if err != nil {
		panic(err)
	}
	converter, err := upstream.NewTypeConverter(schemas, false)
	if err != nil {
		panic(err)
	}
	return converter
})

func managerOf(
	t testing.TB, types upstream.TypeConverter, kind schema.GroupVersionKind, subresource string,
) *upstream.FieldManager {
	t.Helper()
	manager, err := upstream.NewDefaultFieldManager(types, unsafeConvertor, legacyscheme.Scheme, legacyscheme.Scheme,
		kind, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, subresource, nil)
	if err != nil {
		t.Fatal(err)
	}
	return manager
}

// FuzzUpdate: after each of several updates, by several managers and of a few values each,
// the field sets equal those that upstream computes with its own converter.
func FuzzUpdate(f *testing.F) {
	fuzzKinds(f, func(t *testing.T, kind schema.GroupVersionKind, object runtime.Object, random *rand.Rand) {
		ours, theirs := managerOf(t, converter(), kind, ""), managerOf(t, upstreamConverter(), kind, "")
		live, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			if i > 0 {
				fields := mustAccess(t, live).GetManagedFields()
				object = live.DeepCopyObject()
				vary(random, reflect.ValueOf(object).Elem(), 0.2/float64(i))
				mustAccess(t, object).SetManagedFields(fields)
			}
			by := []string{"a", "b", "c"}[i%3]
			want := fieldsOf(t, theirs.UpdateNoErrors(live.DeepCopyObject(), object.DeepCopyObject(), by))
			updated := ours.UpdateNoErrors(live.DeepCopyObject(), object.DeepCopyObject(), by)
			if got := fieldsOf(t, updated); got != want {
				t.Fatalf("%v, update %d:\ngot  %s\nwant %s", kind, i, got, want)
			}
			live = updated
		}
	})
}

// TestUpdate_SkipsNothingThatCanFail: a part with an item that no key identifies is
// compared even if it is unchanged, because upstream drops the managed fields of such an
// object.
func TestUpdate_SkipsNothingThatCanFail(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("ServiceAccount")
	ours, theirs := managerOf(t, converter(), kind, ""), managerOf(t, upstreamConverter(), kind, "")
	account := func(label string) *core.ServiceAccount {
		return &core.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": label}},
			Secrets:    []core.ObjectReference{{Namespace: "n"}},
		}
	}
	for i := range 3 {
		want := fieldsOf(t, theirs.UpdateNoErrors(account("one"), account("two"), "tester"))
		if got := fieldsOf(t, ours.UpdateNoErrors(account("one"), account("two"), "tester")); got != want {
			t.Errorf("update %d:\ngot  %s\nwant %s", i, got, want)
		}
	}
}

// BenchmarkUpdate measures an update of a Pod's status.
func BenchmarkUpdate(b *testing.B) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	pod := samplePod("a", "x")
	pod.Spec.Containers = append(pod.Spec.Containers, *pod.Spec.Containers[0].DeepCopy())
	pod.Spec.Containers[1].Name = "d"
	for name, types := range map[string]upstream.TypeConverter{"upstream": upstreamConverter(), "unchanged": converter()} {
		manager := managerOf(b, types, kind, "status")
		live := managerOf(b, types, kind, "").UpdateNoErrors(&corev1.Pod{}, pod.DeepCopy(), "creator")
		if m, err := meta.Accessor(live); err != nil || len(m.GetManagedFields()) != 1 {
			b.Fatal(m, err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				patched := live.DeepCopyObject().(*core.Pod)
				patched.Status.Message = "changed"
				manager.UpdateNoErrors(live, patched, "tester")
			}
		})
	}
}
