package encoding

import (
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"

	"byre/sqlstore/storetest"
)

func newStoredDecoder(kind schema.GroupVersionKind) *storedDecoder {
	return NewDecoder(legacyscheme.Scheme, kind, NewMessage(legacyscheme.Scheme, kind)).(*storedDecoder)
}

// storedKinds are the versions of the built-in kinds that have objects and are stored.
func storedKinds(t *testing.T) (kinds []schema.GroupVersionKind) {
	t.Helper()
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || kind.Group == metav1.GroupName ||
			strings.HasSuffix(kind.Kind, "List") {
			continue
		}
		in, err := legacyscheme.Scheme.New(internal(kind).WithKind(kind.Kind))
		if err != nil {
			continue
		}
		if _, err := meta.Accessor(in); err == nil {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// What was decoded by way of protobuf equals what the decoder of JSON gives, for every built-in
// kind.
func TestStoredDecoder_EqualsJSON(t *testing.T) {
	t.Parallel()
	byMessage := 0
	for _, kind := range storedKinds(t) {
		decoder := newStoredDecoder(kind)
		codec := legacyscheme.Codecs.LegacyCodec(kind.GroupVersion())
		for seed := range int64(20) {
			obj, err := legacyscheme.Scheme.New(internal(kind).WithKind(kind.Kind))
			if err != nil {
				t.Fatal(err)
			}
			if seed > 0 { // the first object is empty
				fuzzer.FuzzerFor(apitesting.FuzzerFuncs, rand.NewSource(seed), legacyscheme.Codecs).Fill(obj)
			}
			data, err := runtime.Encode(codec, obj)
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			data = trimNewline(data)
			want, _, err := decoder.Serializer.Decode(data, nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			got, gvk, err := decoder.Decode(data, nil, nil)
			if err != nil || *gvk != kind {
				t.Fatalf("%s: decoded a %v: %v", kind, gvk, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s", kind, diff.Diff(want, got))
				break
			}
			if _, ok := decoder.decodeMessage(data); ok {
				byMessage++
			}
		}
	}
	if byMessage < 1000 {
		t.Errorf("only %d objects were decoded by way of protobuf", byMessage)
	}
}

// A decoder leaves to the decoder of JSON what a message can't express, and what is not the
// JSON that was stored.
func TestStoredDecoder_LeavesTheRestToJSON(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	decoder := newStoredDecoder(kind)
	const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{}}]},"status":{}}`
	if _, ok := decoder.decodeMessage([]byte(pod)); !ok {
		t.Error("a Pod was not decoded by way of protobuf")
	}
	for name, text := range map[string]string{
		"an empty list":    strings.Replace(pod, `[{"name":"c","resources":{}}]`, "[]", 1),
		"null in a list":   strings.Replace(pod, `{"name":"c","resources":{}}`, "null", 1),
		"an empty map":     strings.Replace(pod, `"name":"a"`, `"name":"a","labels":{}`, 1),
		"another version":  strings.Replace(pod, `"v1"`, `"v2"`, 1),
		"an unknown field": strings.Replace(pod, `"containers"`, `"kontainers"`, 1),
		"another type":     strings.Replace(pod, `"c"`, "7", 1),
		"half an object":   pod[:len(pod)/2],
		"nothing":          "",
		"the kind last":    `{"metadata":{"name":"a"},"apiVersion":"v1","kind":"Pod"}`,
	} {
		if _, ok := decoder.decodeMessage([]byte(text)); ok {
			t.Errorf("%s was decoded by way of protobuf", name)
		}
		got, _, err := decoder.Decode([]byte(text), nil, nil)
		want, _, wantErr := decoder.Serializer.Decode([]byte(text), nil, nil)
		if !reflect.DeepEqual(got, want) || (err == nil) != (wantErr == nil) {
			t.Errorf("%s: %v, %v, want %v, %v", name, got, err, want, wantErr)
		}
	}
}

func BenchmarkStoredDecoder(b *testing.B) {
	path := filepath.Join(storetest.ModuleDir(b, "k8s.io/api"), "testdata", "HEAD", "core.v1.Pod.json")
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	decoder := newStoredDecoder(kind)
	obj, _, err := decoder.Serializer.Decode(text, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	data, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(kind.GroupVersion()), obj)
	if err != nil {
		b.Fatal(err)
	}
	data = trimNewline(data)
	if _, ok := decoder.decodeMessage(data); !ok {
		b.Fatal("the Pod is decoded as JSON")
	}
	for name, d := range map[string]runtime.Decoder{"json": decoder.Serializer, "message": decoder} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := d.Decode(data, nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
