package handlers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/handlers"
)

// indentInPieces indents a text that comes in pieces of size bytes.
func indentInPieces(text []byte, size int) string {
	var pieces [][]byte
	for len(text) > 0 {
		n := min(size, len(text))
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return string(handlers.Indent(pieces...))
}

// TestIndent_EqualsUpstreamsSerializer indents what upstream's compact serializer writes, in pieces of several sizes,
// and compares it with what the indenting one writes: objects of every built-in kind, their lists, a Status, a table,
// and custom resources.
func TestIndent_EqualsUpstreamsSerializer(t *testing.T) {
	t.Parallel()
	const odd = "<a href=\"x\">&</a> \u2028\u2029 \\\\\" \\u003c \x00\t\n {[,:]} é😀"
	custom := func(name string) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				odd: odd, "empty": map[string]any{}, "none": []any{}, "null": nil, "": "", "true": true,
				"large": int64(math.MaxInt64), "small": int64(math.MinInt64), "zero": int64(0),
				"floats": []any{1.5, 1e21, 1e-9, -0.1, math.MaxFloat64},
				"nested": []any{[]any{}, []any{[]any{map[string]any{}}}, map[string]any{"a": []any{map[string]any{"b": "c"}}}},
			},
		}}
	}
	one, two := custom("one"), custom("two")
	two.Object["spec"] = odd
	objects := []runtime.Object{
		&one, &two, &unstructured.Unstructured{Object: map[string]any{"kind": "Empty"}},
		&unstructured.UnstructuredList{Object: map[string]any{"kind": "WidgetList", "apiVersion": "example.com/v1"}},
		&unstructured.UnstructuredList{
			Object: map[string]any{
				"kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": map[string]any{"continue": ""},
			},
			Items: []unstructured.Unstructured{one, two},
		},
		&metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: odd, Code: 404,
			Details: &metav1.StatusDetails{Name: odd, Causes: []metav1.StatusCause{{Message: odd}, {}}},
		},
		&metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}},
		&metav1.Table{
			ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string"}},
			Rows: []metav1.TableRow{
				{
					Cells:  []any{odd, int64(math.MaxInt64), nil, 1.5, []string{"a"}},
					Object: runtime.RawExtension{Raw: []byte(`{ "a" : [ ] }`)},
				},
				{Cells: []any{}, Object: runtime.RawExtension{Object: &one}},
			},
		},
	}
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || strings.HasSuffix(kind.Kind, "List") {
			continue
		}
		var items []runtime.Object
		for seed := range int64(3) {
			memory := randomObject(kind, seed)
			if memory == nil {
				continue
			}
			obj, err := legacyscheme.Scheme.ConvertToVersion(memory, kind.GroupVersion())
			if err != nil {
				continue // of a random value that no API accepts
			}
			items = append(items, obj)
		}
		objects = append(objects, items...)
		list, err := legacyscheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err == nil && meta.SetList(list, items) == nil {
			objects = append(objects, list)
		}
	}
	encode := func(obj runtime.Object, isPretty bool) ([]byte, error) {
		var buf bytes.Buffer
		options := serializerjson.SerializerOptions{Pretty: isPretty, StreamingCollectionsEncoding: !isPretty}
		scheme := legacyscheme.Scheme
		serializer := serializerjson.NewSerializerWithOptions(serializerjson.DefaultMetaFactory, scheme, scheme, options)
		err := serializer.Encode(obj, &buf)
		return buf.Bytes(), err
	}
	compared := 0
	for _, obj := range objects {
		compact, err := encode(obj, false)
		if err != nil {
			continue // of a random value without an encoding
		}
		want, err := encode(obj, true)
		if err != nil {
			t.Fatal(err)
		}
		compared++
		for _, size := range []int{1, 7, 100, len(compact)} {
			if got := indentInPieces(compact, size); got != string(want) {
				t.Fatalf("%T in pieces of %d bytes\n got %s\nwant %s", obj, size, got, want)
			}
		}
	}
	if compared < 500 {
		t.Errorf("only %d objects were compared", compared)
	}
}

func FuzzIndent(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `""`, `"\\"`, `{"a":[{},[],"\"]",null,1e5],"":{"b":{}}}`, `[[[]]]`, ` { "a" : [ 1 , 2 ] } `,
	} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		var want bytes.Buffer
		if json.Indent(&want, text, "", "  ") != nil {
			return
		}
		// json.Indent keeps white space at the end, which encoded objects do not have.
		if got := indentInPieces(text, max(1, int(size))); got != strings.TrimRight(want.String(), " \t\r\n") {
			t.Errorf("%q\n got %s\nwant %s", text, got, want.String())
		}
	})
}

func BenchmarkIndent(b *testing.B) {
	var items []string
	for i := range 100 {
		items = append(items, benchmarkPod(i))
	}
	text := fmt.Appendf(nil, `{"kind":"PodList","apiVersion":"v1","items":[%s]}`, strings.Join(items, ","))
	b.Run("byre", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			handlers.Indent(text)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if err := json.Indent(new(bytes.Buffer), text, "", "  "); err != nil {
				b.Fatal(err)
			}
		}
	})
}
