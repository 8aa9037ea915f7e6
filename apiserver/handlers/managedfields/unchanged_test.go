package managedfields_test

import (
	"math/rand"
	"reflect"
	"sync"
	"testing"

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

	"byre/apiserver/handlers/documents"
)

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

func managerOf(t testing.TB, types upstream.TypeConverter, kind schema.GroupVersionKind, subresource string) *upstream.FieldManager {
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
