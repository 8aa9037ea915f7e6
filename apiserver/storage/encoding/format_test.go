package encoding

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/api/testing" // installs every built-in group

	"byre/sqlstore/storetest"
)

const revision = 1234567

// The encoded answer of an object, by itself and as an item of a list, equals byte for byte
// what upstream's encoder writes for the decoded object.
func TestEncoded_EqualsDecodingAndEncoding(t *testing.T) {
	t.Parallel()
	tested := 0
	for _, file := range fixtures(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			obj, gvk, err := legacyscheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
			if err != nil {
				t.Skip("not of a built-in group: ", err)
			}
			if _, err := meta.Accessor(obj); err != nil {
				t.Skip("not an object")
			}
			if _, err := legacyscheme.Scheme.New(internal(*gvk).WithKind(gvk.Kind)); err != nil {
				t.Skip("not stored")
			}
			checkEncoded(t, *gvk, data)
			tested++
		})
	}
	if tested < 100 {
		t.Errorf("%d kinds were tested only", tested)
	}
}

func internal(gvk schema.GroupVersionKind) schema.GroupVersion {
	return schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal}
}

// fixtures are upstream's own objects, one of each kind, with every field set.
func fixtures(t *testing.T) []string {
	files, err := filepath.Glob(filepath.Join(storetest.ModuleDir(t, "k8s.io/api"), "testdata", "HEAD", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func checkEncoded(t *testing.T, gvk schema.GroupVersionKind, data []byte) {
	gv := gvk.GroupVersion()
	codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeJSON,
		StorageSerializer: legacyscheme.Codecs,
		StorageVersion:    gv,
		MemoryVersion:     internal(gvk),
	})
	if err != nil {
		t.Fatal(err)
	}
	versioner := storage.APIObjectVersioner{}
	decode := func(data []byte) runtime.Object {
		obj, err := runtime.Decode(codec, data)
		if err != nil {
			t.Fatal(err)
		}
		return obj
	}
	encode := func(obj runtime.Object) []byte {
		out, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(gv), obj)
		if err != nil {
			t.Fatal(err)
		}
		return trimNewline(out)
	}

	obj := decode(data)
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		t.Fatal(err)
	}
	stored, err := runtime.Encode(codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	doc := newJSON(trimNewline(stored))

	read := decode(stored)
	if err := versioner.UpdateObject(read, revision); err != nil {
		t.Fatal(err)
	}
	want := encode(read)
	if got := appendJSON(nil, &doc, revision, true); !bytes.Equal(got, want) {
		t.Errorf("object:\n got %s\nwant %s", got, want)
	}

	list, err := legacyscheme.Scheme.New(internal(gvk).WithKind(gvk.Kind + "List"))
	if err != nil {
		return // a kind without a list
	}
	if err := meta.SetList(list, []runtime.Object{read}); err != nil {
		t.Fatal(err)
	}
	item := appendJSON([]byte(`"items":[`), &doc, revision, false)
	if got := encode(list); !bytes.HasSuffix(got, append(item, "]}"...)) {
		t.Errorf("item:\n got %s\nin %s", item, got)
	}
}

// The place of the resourceVersion in an object's bytes depends on the object's metadata.
func TestDocument_PlacesTheResourceVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ stored, whole, item string }{
		{ // typed: after uid
			`{"kind":"A","apiVersion":"v1","metadata":{"name":"n","uid":"u","labels":{}},"spec":{}}`,
			`{"kind":"A","apiVersion":"v1","metadata":{"name":"n","uid":"u","resourceVersion":"7","labels":{}},"spec":{}}`,
			`{"metadata":{"name":"n","uid":"u","resourceVersion":"7","labels":{}},"spec":{}}`,
		},
		{ // typed, with nothing before it
			`{"kind":"A","apiVersion":"v1","metadata":{"labels":{"a":"}\"{"}}}`,
			`{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"7","labels":{"a":"}\"{"}}}`,
			`{"metadata":{"resourceVersion":"7","labels":{"a":"}\"{"}}}`,
		},
		{ // typed, with empty metadata
			`{"kind":"A","apiVersion":"v1","metadata":{},"spec":1}`,
			`{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"7"},"spec":1}`,
			`{"metadata":{"resourceVersion":"7"},"spec":1}`,
		},
		{ // typed, without metadata
			`{"kind":"A","apiVersion":"v1","spec":1}`,
			`{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"7"},"spec":1}`,
			`{"metadata":{"resourceVersion":"7"},"spec":1}`,
		},
		{ // unstructured: in the order of keys, and an item has its type
			`{"apiVersion":"a/v1","data":{"metadata":{}},"kind":"A","metadata":{"annotations":{"x":"{"},"name":"n","uid":"u"},"z":[1]}`,
			`{"apiVersion":"a/v1","data":{"metadata":{}},"kind":"A","metadata":{"annotations":{"x":"{"},"name":"n","resourceVersion":"7","uid":"u"},"z":[1]}`,
			`{"apiVersion":"a/v1","data":{"metadata":{}},"kind":"A","metadata":{"annotations":{"x":"{"},"name":"n","resourceVersion":"7","uid":"u"},"z":[1]}`,
		},
		{ // unstructured, last in order
			`{"apiVersion":"a/v1","kind":"A","metadata":{"name":"n"}}`,
			`{"apiVersion":"a/v1","kind":"A","metadata":{"name":"n","resourceVersion":"7"}}`,
			`{"apiVersion":"a/v1","kind":"A","metadata":{"name":"n","resourceVersion":"7"}}`,
		},
	} {
		doc := newJSON([]byte(test.stored))
		if got := string(appendJSON(nil, &doc, 7, true)); got != test.whole {
			t.Errorf("whole:\n got %s\nwant %s", got, test.whole)
		}
		if got := string(appendJSON(nil, &doc, 7, false)); got != test.item {
			t.Errorf("item:\n got %s\nwant %s", got, test.item)
		}
	}
}

// trimNewline removes the newline that encoders end an object with.
func trimNewline(data []byte) []byte { return bytes.TrimRight(data, "\n") }

// FuzzDocument: inserting a resourceVersion into an object's bytes equals setting it on the
// decoded object, and an object that does not begin with its kind keeps the order of its
// members.
func FuzzDocument(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"metadata":{}}`, `{"metadata":{"name":"a"},"spec":{"metadata":{"x":"}"}}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"uid":"u","zone":1}}`,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u","creationTimestamp":null}}`,
		`{"kind":"Pod","apiVersion":"v1"}`,
		`{"a\"b":"\\","metadata":{"annotations":{"a":"\"}"},"s":{}}}`,
		`{"a":[{"metadata":{}},"]"],"metadata":{"resource":""}}`, `[]`, `{"metadata":`, `{"metadata":{"\`, "{\"\xff\":1}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 0 {
			// Invalid JSON must not cause a panic.
			d := newJSON(text)
			appendJSON(nil, &d, 7, true)
		}
		object, body := canonical(text)
		meta, isObject := object["metadata"].(map[string]any)
		if object == nil || object["metadata"] != nil && !isObject || meta["resourceVersion"] != nil {
			return // encoders do not write this
		}
		if _, null := object["metadata"]; null && !isObject {
			return
		}
		d := newJSON(body)
		got := appendJSON(nil, &d, 7, true)
		if !isObject {
			meta = map[string]any{}
			object["metadata"] = meta
		}
		meta["resourceVersion"] = "7"
		var back map[string]any
		if err := json.Unmarshal(got, &back); err != nil || !reflect.DeepEqual(back, object) {
			t.Fatalf("%s became %s: %v", body, got, err)
		}
		want, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		// (Escapes sort in another order than the characters that they stand for.)
		if isObject && !bytes.HasPrefix(body, []byte(`{"kind":`)) && !bytes.Contains(body, []byte(`\`)) &&
			!bytes.Equal(got, want) {
			t.Errorf("%s became %s, want %s", body, got, want)
		}
	})
}

// canonical decodes text if it is a JSON object, and encodes it as encoders do: each member
// once, in order.
func canonical(text []byte) (object map[string]any, body []byte) {
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return nil, nil
	}
	body, err := json.Marshal(object)
	if err != nil {
		return nil, nil
	}
	return object, body
}
