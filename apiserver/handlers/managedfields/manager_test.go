package managedfields_test

import (
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/apis/core"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
)

// kinds are the kinds of all built-in objects that have metadata.
var kinds = sync.OnceValue(func() (all []schema.GroupVersionKind) {
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		object, err := legacyscheme.Scheme.New(kind)
		if err != nil || kind.Version == runtime.APIVersionInternal {
			continue
		}
		_, err = meta.Accessor(object)
		if _, internalErr := legacyscheme.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal)); err == nil &&
			internalErr == nil {
			all = append(all, kind)
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	return all
})

var converter = sync.OnceValue(func() upstream.TypeConverter {
	var names []string
	for _, kind := range kinds() {
		object, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			panic(err)
		}
		names = append(names, util.GetCanonicalTypeName(object))
	}
	return managedfields.NewTypeConverter(documents.NewModels("test", generated.GetOpenAPIDefinitions,
		legacyscheme.Scheme).Schemas(names...))
})

// unsafeConvertor is the convertor that the server uses.
var unsafeConvertor = runtime.UnsafeObjectConvertor(legacyscheme.Scheme)

func newTracker(t testing.TB, kind schema.GroupVersionKind) (*managedfields.Manager, *upstream.FieldManager) {
	t.Helper()
	reset := fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(kind.GroupVersion().String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	})
	manager, err := upstream.NewDefaultFieldManager(converter(), unsafeConvertor, legacyscheme.Scheme, legacyscheme.Scheme,
		kind, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, "", reset)
	if err != nil {
		t.Fatal(err)
	}
	return managedfields.New(managedfields.Config{
		Kind: kind, Upstream: manager, Types: converter(), Converter: unsafeConvertor, Creater: legacyscheme.Scheme,
		FieldSets: managedfields.NewFieldSets(1 << 20),
	}), manager
}

func create(t testing.TB, m *managedfields.Manager, object runtime.Object, manager string) {
	if err := m.Create(object, manager); err != nil {
		t.Fatal(err)
	}
}

// fieldsOf returns the managed fields of an object without their times.
func fieldsOf(t testing.TB, object runtime.Object) string {
	t.Helper()
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	var entries []string
	for _, f := range accessor.GetManagedFields() {
		if f.Time == nil || f.Time.Location().String() != "UTC" {
			t.Errorf("time %v", f.Time)
		}
		entries = append(entries,
			strings.Join([]string{f.Manager, string(f.Operation), f.APIVersion, f.FieldsType, f.FieldsV1.GetRawString(),
				f.Subresource}, " "))
	}
	// Entries are sorted by their times, which differ between two computations.
	slices.Sort(entries)
	return strings.Join(entries, "\n")
}

// computed returns the managed fields that upstream's field manager computes.
func computed(
	t testing.TB, manager *upstream.FieldManager, kind schema.GroupVersionKind, object runtime.Object, by string,
) string {
	t.Helper()
	object = object.DeepCopyObject()
	empty, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	return fieldsOf(t, manager.UpdateNoErrors(empty, object, by))
}

// FuzzTrack: the field sets of a random object, and of objects that differ from it in a few
// values, equal those that upstream computes, both for known shapes and for new ones.
func FuzzTrack(f *testing.F) {
	fuzzKinds(f, func(t *testing.T, kind schema.GroupVersionKind, object runtime.Object, random *rand.Rand) {
		tracker, manager := newTracker(t, kind)
		for i := range 12 {
			variant := object.DeepCopyObject()
			if i%2 == 1 {
				vary(random, reflect.ValueOf(variant).Elem(), 0.3/float64(i))
				mustAccess(t, variant).SetManagedFields(nil)
			}
			want := computed(t, manager, kind, variant, "tester")
			create(t, tracker, variant, "tester")
			if got := fieldsOf(t, variant); got != want {
				t.Fatalf("%v, variant %d:\ngot  %s\nwant %s", kind, i, got, want)
			}
		}
	})
}

// fuzzKinds fuzzes with random objects of all kinds, in their internal version and without
// managed fields. Its seeds have an object of each kind.
func fuzzKinds(
	f *testing.F, test func(t *testing.T, kind schema.GroupVersionKind, object runtime.Object, random *rand.Rand),
) {
	f.Helper()
	if testing.Short() {
		f.Skip("compares every kind")
	}
	for i := range kinds() {
		f.Add(int64(i), uint16(i))
	}
	f.Fuzz(func(t *testing.T, seed int64, number uint16) {
		kind := kinds()[int(number)%len(kinds())]
		random := rand.New(rand.NewSource(seed))
		object, err := legacyscheme.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
		if err != nil {
			t.Fatal(err)
		}
		fuzzer.FuzzerFor(kubetesting.FuzzerFuncs, random, legacyscheme.Codecs).NilChance(0.5).NumElements(0,
			2).MaxDepth(8).Fill(object)
		mustAccess(t, object).SetManagedFields(nil)
		test(t, kind, object, random)
	})
}

func mustAccess(t testing.TB, object runtime.Object) metav1.Object {
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	return accessor
}

// vary changes each scalar, and empties each optional value, with a probability.
func vary(random *rand.Rand, v reflect.Value, probability float64) {
	isChanged := random.Float64() < probability
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			vary(random, v.Elem(), probability)
			if isChanged && v.CanSet() && random.Intn(4) == 0 {
				v.SetZero()
			}
		}
	case reflect.Struct:
		if _, is := v.Interface().(intstr.IntOrString); is {
			return // its values are of any type
		}
		for _, field := range v.Fields() {
			if field.CanSet() {
				vary(random, field, probability)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return // it may have to be valid JSON
		}
		for i := range v.Len() {
			vary(random, v.Index(i), probability)
		}
		switch {
		case !isChanged:
		case random.Intn(3) == 0:
			v.SetZero()
		case v.Len() > 0:
			v.Set(v.Slice(0, random.Intn(v.Len())))
		default:
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
	case reflect.Map:
		if isChanged && !v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	case reflect.String:
		if isChanged {
			v.SetString([]string{"", "a", "b", "c"}[random.Intn(4)])
		}
	case reflect.Bool:
		if isChanged {
			v.SetBool(!v.Bool())
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if isChanged {
			v.SetInt(random.Int63n(3))
		}
	}
}

// samplePod is a Pod with environment, probes and resources.
func samplePod(name, value string) *core.Pod {
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": value}},
		Spec: core.PodSpec{NodeName: value, Containers: []core.Container{{
			Name: "c", Image: value, Env: []core.EnvVar{{Name: "E", Value: value}, {Name: "F", Value: value}},
			Ports: []core.ContainerPort{{ContainerPort: 80, Protocol: core.ProtocolTCP}},
		}}},
	}
}

// TestTracker_SharesFieldSets: Pods that differ only in values share a field set and its
// bytes; a Pod with an additional field, another key or another manager has its own.
func TestTracker_SharesFieldSets(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	tracker, manager := newTracker(t, kind)
	tolerant, renamed := samplePod("d", "x"), samplePod("e", "x")
	tolerant.Spec.Tolerations = []core.Toleration{{Key: "k"}}
	renamed.Spec.Containers[0].Env[0].Name = "G"
	raw := map[string]string{}
	for _, c := range []struct {
		pod     *core.Pod
		manager string
	}{{samplePod("a", "x"), "one"}, {samplePod("b", "y"), "two"}, {samplePod("c", "z"), ""},
		{samplePod("f", "z"), "not \xff UTF-8"}, {tolerant, "one"}, {renamed, "one"}} {
		want := computed(t, manager, kind, c.pod, c.manager)
		create(t, tracker, c.pod, c.manager)
		if got := fieldsOf(t, c.pod); got != want || want == "" {
			t.Errorf("fields of %s:\ngot  %s\nwant %s", c.pod.Name, got, want)
		}
		raw[c.pod.Name] = c.pod.ManagedFields[0].FieldsV1.GetRawString()
	}
	if raw["a"] != raw["b"] || raw["a"] == raw["d"] || raw["a"] == raw["e"] {
		t.Errorf("the sets are %v", raw)
	}
}

func BenchmarkTrack(b *testing.B) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	tracker, manager := newTracker(b, kind)
	pod := samplePod("a", "x")
	pod.Spec.Containers = append(pod.Spec.Containers, *pod.Spec.Containers[0].DeepCopy())
	pod.Spec.Containers[1].Name = "d"
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pod.ManagedFields = nil
			manager.UpdateNoErrors(&corev1.Pod{}, pod, "tester")
		}
	})
	b.Run("shape", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pod.ManagedFields = nil
			create(b, tracker, pod, "tester")
		}
	})
}
