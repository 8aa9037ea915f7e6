package managedfields_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // registers the kinds
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"byre/apiserver/handlers/documents"
	"byre/apiserver/handlers/managedfields"
)

func podConverter() upstream.TypeConverter {
	models := documents.NewModels("test", generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
	return managedfields.NewTypeConverter(models.Schemas(util.GetCanonicalTypeName(corev1.Pod{})))
}

func podOf(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{NodeName: "n", Containers: containers},
	}
}

func typedOf(
	t *testing.T, c upstream.TypeConverter, pod *corev1.Pod, options ...typed.ValidationOptions,
) *typed.TypedValue {
	t.Helper()
	v, err := c.ObjectToTyped(pod, options...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTypeConverter_Converts converts a Pod twice: both values compare alike with other
// values, and each converts back to a Pod.
func TestTypeConverter_Converts(t *testing.T) {
	c := podConverter()
	image := func(image string) *corev1.Pod {
		return podOf(corev1.Container{Name: "c", Image: image,
			Env: []corev1.EnvVar{{Name: "E", Value: "1"}, {Name: "E", Value: "2"}}})
	}
	first := typedOf(t, c, image("one"), typed.AllowDuplicates)
	again := typedOf(t, c, image("one"), typed.AllowDuplicates)
	empty, other := typedOf(t, c, podOf(), typed.AllowDuplicates), typedOf(t, c, image("two"), typed.AllowDuplicates)
	for _, with := range []*typed.TypedValue{empty, other} {
		want, err := with.Compare(first)
		if err != nil {
			t.Fatal(err)
		}
		got, err := with.Compare(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" || want.IsSame() {
			t.Errorf("compared with another (-first +again):\n%s", diff)
		}
	}
	for _, v := range []*typed.TypedValue{first, again} {
		object, err := c.TypedToObject(v)
		if err != nil {
			t.Fatal(err)
		}
		if kind := object.GetObjectKind().GroupVersionKind(); kind != corev1.SchemeGroupVersion.WithKind("Pod") {
			t.Errorf("it became a %v", kind)
		}
	}
	if object, err := c.TypedToObject(again); err != nil || !cmp.Equal(object, image("one")) {
		t.Errorf("it became %v, %v", object, err)
	}
}

// TestTypeConverter_Validates: a value that the Go type allows and the schema forbids is an
// error, the first time and later.
func TestTypeConverter_Validates(t *testing.T) {
	c := podConverter()
	twins := podOf(corev1.Container{Name: "c"}, corev1.Container{Name: "c"})
	for range 2 {
		if _, err := c.ObjectToTyped(twins); err == nil || !strings.Contains(err.Error(), "duplicate") {
			t.Errorf("two containers of one name: %v", err)
		}
		typedOf(t, c, twins, typed.AllowDuplicates)
	}
	twins.Kind = "Unknown"
	if _, err := c.ObjectToTyped(twins, typed.AllowDuplicates); err == nil {
		t.Error("a kind without a schema was converted")
	}
}
