package transcode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/randfill"

	_ "byre/apiserver/registry" // registers the types
	"byre/apiserver/storage/transcode"
)

type marshaller interface {
	runtime.Object
	Marshal() ([]byte, error)
}

// notTranscoded are the kinds with members that need a decoder: objects of any kind inside
// the object.
var notTranscoded = []string{
	"ControllerRevision.apps v1", "ControllerRevision.apps v1beta1", "ControllerRevision.apps v1beta2",
	"DeviceClass.resource.k8s.io v1", "DeviceClass.resource.k8s.io v1beta1", "DeviceClass.resource.k8s.io v1beta2",
	"ResourceClaim.resource.k8s.io v1", "ResourceClaim.resource.k8s.io v1beta1", "ResourceClaim.resource.k8s.io v1beta2",
	"ResourceClaimTemplate.resource.k8s.io v1", "ResourceClaimTemplate.resource.k8s.io v1beta1",
	"ResourceClaimTemplate.resource.k8s.io v1beta2",
}

// filler fills objects with values that JSON can express.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Funcs(
		func(t *metav1.Time, c randfill.Continue) {
			if c.Bool() {
				t.Time = time.Unix(c.Int63n(1<<32), 0)
			}
		},
		func(t *metav1.MicroTime, c randfill.Continue) {
			if c.Bool() {
				t.Time = time.UnixMicro(c.Int63n(1 << 52))
			}
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(1e9), resource.DecimalSI)
		},
		func(f *metav1.FieldsV1, _ randfill.Continue) {
			f.SetRawBytes([]byte(`{"f:metadata":{"f:labels":{".":{},"k:{\"a\":1}":{}}}}`))
		},
		func(i *intstr.IntOrString, c randfill.Continue) {
			if *i = intstr.FromInt32(int32(c.Uint32())); c.Bool() {
				*i = intstr.FromString(text(c))
			}
		},
		func(s *string, c randfill.Continue) { *s = text(c) },
		func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{"a":1}`) },
	)
}

var texts = []string{"", "a", "b/c", "<&>", "quote\" \\ back", "\u2028 line", "\x01\n\t", "ü€😀",
	strings.Repeat("long ", 60)}

func text(c randfill.Continue) string { return texts[c.Intn(len(texts))] }

// TestTranscode_EqualsUpstreamForEveryBuiltInType compares the protobuf with what
// upstream's types marshal, for every kind of the built-in scheme.
func TestTranscode_EqualsUpstreamForEveryBuiltInType(t *testing.T) {
	t.Parallel()
	var unsupported []string
	for gvk, goType := range legacyscheme.Scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal || strings.HasSuffix(gvk.Kind, "List") {
			continue
		}
		example, ok := reflect.New(goType).Interface().(marshaller)
		if !ok || gvk.Group == metav1.GroupName || isMeta(goType) {
			continue
		}
		if _, isObject := example.(metav1.Object); !isObject {
			continue
		}
		message, err := transcode.New(goType)
		if err != nil {
			unsupported = append(unsupported, gvk.GroupKind().String()+" "+gvk.Version)
			t.Log(err)
			continue
		}
		t.Run(gvk.String(), func(t *testing.T) { compareWithMarshal(t, message, goType, gvk) })
	}
	slices.Sort(unsupported)
	if !slices.Equal(unsupported, notTranscoded) {
		t.Errorf("not transcoded: %q, want %q", unsupported, notTranscoded)
	}
}

func isMeta(t reflect.Type) bool { return strings.HasSuffix(t.PkgPath(), "/meta/v1") }

func compareWithMarshal(t *testing.T, message *transcode.Message, goType reflect.Type, gvk schema.GroupVersionKind) {
	t.Parallel()
	for seed := range int64(40) {
		filled := reflect.New(goType).Interface().(marshaller)
		if seed > 0 { // the first object is empty
			filler(seed).Fill(filled)
		}
		filled.GetObjectKind().SetGroupVersionKind(gvk)
		document, err := json.Marshal(filled)
		if err != nil {
			t.Fatal(err)
		}
		decoded := reflect.New(goType).Interface().(marshaller)
		if err := json.Unmarshal(document, decoded); err != nil {
			t.Fatal(err)
		}
		want, err := decoded.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := appendMessage(message, []byte("before"), document)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Fatalf("seed %d: got\n%q\nwant\n%q\nof %s", seed, got[len("before"):], want, document)
		}
	}
}

// TestTranscode_BrokenJSONIsAnError: JSON that is not of the type is an error, and never a
// panic.
func TestTranscode_BrokenJSONIsAnError(t *testing.T) {
	t.Parallel()
	message, err := transcode.New(reflect.TypeFor[metav1.PartialObjectMetadata]())
	if err != nil {
		t.Fatal(err)
	}
	document :=
		`{"kind":"X","apiVersion":"v1","metadata":{"name":"a\n","labels":{"a":"b","c":"d"},"creationTimestamp":"2024-01-02T03:04:05Z","managedFields":[{"manager":"m","fieldsV1":{"f:x":{}}}]}}`
	if _, err := appendMessage(message, nil, []byte(document)); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{
		``, `{`, `null`, `[]`, `{"metadata":`, `{"metadata":[]}`, `{"metadata":{"name":1}}`, `{"unknown":1}`,
		`{"metadata":{"labels":{"c":"d","a":"b"}}}`, `{"metadata":{"generation":1.5}}`,
		`{"metadata":{"creationTimestamp":"soon"}}`,
		`{"metadata":{"name":"\`, `{"metadata":{}}}`, document + document,
	} {
		if _, err := appendMessage(message, nil, []byte(broken)); err == nil {
			t.Errorf("%s: no error", broken)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		changed := []byte(document)
		changed[r.IntN(len(changed))] = `{}[]",:\x0n`[r.IntN(11)]
		_, _ = appendMessage(message, nil, changed[:r.IntN(len(changed)+1)])
	}
}

// TestTranscodeHead_EndsBehindTheMetadata: the metadata of a whole object gives the same
// message as the metadata alone, and an object without metadata is not guessed at.
func TestTranscodeHead_EndsBehindTheMetadata(t *testing.T) {
	t.Parallel()
	message, err := transcode.New(reflect.TypeFor[metav1.PartialObjectMetadata]())
	if err != nil {
		t.Fatal(err)
	}
	head := func(document string) (out []byte, err error) {
		err = message.TranscodeHead([]byte(document), func(message []byte) error {
			out = bytes.Clone(message)
			return nil
		})
		return out, err
	}
	const metadata = `"metadata":{"name":"a","labels":{"spec":"b"}}`
	want, err := appendMessage(message, nil, []byte(`{`+metadata+`}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range []string{
		`{"kind":"X","apiVersion":"v1",` + metadata + `}`,
		`{"kind":"X","apiVersion":"v1",` + metadata + `,"spec":{"metadata":{"name":"c"}},"status":{}}`,
		`{"apiVersion":"v1","kind":"X",` + metadata + `,"spec":null}`,
	} {
		if got, err := head(document); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", document, got, err, want)
		}
	}
	for _, document := range []string{
		`{"kind":"X","spec":{},` + metadata + `}`, `{"kind":"X","spec":{}}`, `{"metadata":{"unknown":1},"spec":{}}`,
		`{"metadata":{"name":"a"`,
	} {
		if _, err := head(document); !errors.Is(err, transcode.ErrUnexpected) {
			t.Errorf("%s: %v", document, err)
		}
	}
}

// BenchmarkPod compares transcoding a Pod of about 4.5 kB with decoding, converting and
// encoding it.
func BenchmarkPod(b *testing.B) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
	pod.Name, pod.Namespace, pod.UID = "pod-1", "default", "00000000-0000-0000-0000-000000000001"
	pod.Labels = map[string]string{"app": "bench", "pod-template-hash": "abc"}
	pod.CreationTimestamp = metav1.Unix(1_700_000_000, 0)
	for range 3 {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "kubelet", Operation: "Update", APIVersion: "v1", Time: &pod.CreationTimestamp, FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{"f:conditions":{".":{}` +
				strings.Repeat(`,"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}`, 8) + `}}}`)},
		})
	}
	for i := range 2 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprint("c", i), Image: "registry.example/app:1", ImagePullPolicy: "Always",
			Env: []corev1.EnvVar{{Name: "A", Value: "1"},
				{Name: "B",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1",
						FieldPath: "spec.nodeName"}}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "v1", MountPath: "/v1"}, {Name: "v2", MountPath: "/v2", ReadOnly: true}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"),
				"memory": resource.MustParse("64Mi")}},
		})
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			corev1.Volume{Name: fmt.Sprint("v", i),
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}})
	}
	for i := range 5 {
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("Condition", i)), Status: "True",
				LastTransitionTime: pod.CreationTimestamp})
	}
	document, err := json.Marshal(pod)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("transcode", func(b *testing.B) {
		message, err := transcode.New(reflect.TypeFor[corev1.Pod]())
		if err != nil {
			b.Fatal(err)
		}
		var out []byte
		b.SetBytes(int64(len(document)))
		b.ReportAllocs()
		for b.Loop() {
			if out, err = appendMessage(message, out[:0], document); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		codec := legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)
		b.SetBytes(int64(len(document)))
		b.ReportAllocs()
		for b.Loop() {
			object, err := runtime.Decode(codec, document)
			if err != nil {
				b.Fatal(err)
			}
			versioned, err := runtime.UnsafeObjectConvertor(legacyscheme.Scheme).ConvertToVersion(object,
				corev1.SchemeGroupVersion)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := versioned.(marshaller).Marshal(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// appendMessage appends the message of a JSON object to dst.
func appendMessage(m *transcode.Message, dst, object []byte) ([]byte, error) {
	err := m.Transcode(object, func(message []byte) error {
		dst = append(dst, message...)
		return nil
	})
	return dst, err
}
