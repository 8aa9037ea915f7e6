package documents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/sqlstore/storetest"
)

// document is an OpenAPI v2 document with one path, whose operation refers to definitions and
// parameters of the names.
func document(path string, definitions, parameters map[string]string) string {
	var refs, params []string
	for name := range definitions {
		refs = append(refs, fmt.Sprintf(`"%d":{"description":"d","schema":{"$ref":"#/definitions/%s"}}`, 200+len(refs), name))
	}
	for name := range parameters {
		params = append(params, fmt.Sprintf(`{"$ref":"#/parameters/%s"}`, name))
	}
	texts := func(of map[string]string) string {
		var all []string
		for name, text := range of {
			all = append(all, fmt.Sprintf("%q:%s", name, text))
		}
		return strings.Join(all, ",")
	}
	list := ""
	if len(params) > 0 {
		list = `,"parameters":[` + strings.Join(params, ",") + "]"
	}
	return fmt.Sprintf(
		`{"swagger":"2.0","info":{"title":"Kubernetes","version":"1"},"paths":{%q:{"get":{"description":"<of> %s","responses":{%s}%s}}},`+
			`"definitions":{%s},"parameters":{%s},"securityDefinitions":{"BearerToken":{"type":"apiKey","name":"authorization","in":"header"}},"security":[{"BearerToken":[]}]}`,
		path, path, strings.Join(refs, ","), list, texts(definitions), texts(parameters))
}

func kinds(group string) string {
	return fmt.Sprintf(
		`{"type":"object","description":"a <kind>","x-kubernetes-group-version-kind":[{"group":%q,"kind":"K","version":"v1"}]}`, group)
}

// TestMerge_EqualsUpstream compares the merged text with what upstream makes of the objects.
func TestMerge_EqualsUpstream(t *testing.T) {
	t.Parallel()
	type named = map[string]string
	const text, number = `{"type":"string"}`, `{"type":"number","description":"\u003ctwo\u003e"}`
	parameter := func(name string) string { return fmt.Sprintf(`{"name":%q,"in":"query","type":"string"}`, name) }
	for name, parts := range map[string][]string{
		"one": {document("/a", named{"A": text}, named{"p": parameter("p")})},
		"nothing in common": {document("/a", named{"A": text}, nil),
			document("/b", named{"B": number}, named{"p": parameter("p")})},
		"equal definitions": {document("/a", named{"A": text}, nil), document("/b", named{"A": text, "B": number}, nil)},
		"the same path":     {document("/a", named{"A": text}, nil), document("/a", named{"B": number}, nil)},
		"equal but for escapes": {document("/a", named{"A": number}, nil),
			document("/b", named{"A": strings.ReplaceAll(strings.ReplaceAll(number, `\u003c`, "<"), `\u003e`, ">")}, nil)},
		"kinds": {document("/a", named{"A": kinds("b")}, nil), document("/b", named{"A": kinds("a")}, nil),
			document("/c", named{"A": kinds("c")}, nil), document("/d", named{"A": kinds("c")}, nil)},
		"another definition": {document("/a", named{"A": text}, nil),
			document("/b", named{"A": number, "B": kinds("b")}, nil)},
		"another twice": {document("/a", named{"A": text}, nil), document("/b", named{"A": number}, nil),
			document("/c", named{"A": number}, nil), document("/d", named{"A": kinds("d")}, nil)},
		"another is there": {document("/a", named{"A": text, "A_v2": text}, nil),
			document("/b", named{"A": number, "A_v3": text}, nil)},
		"another parameter": {document("/a", nil, named{"p": parameter("p")}),
			document("/b", nil, named{"p": parameter("q")}), document("/c", named{"A": text}, named{"p": parameter("q")})},
		"without paths": {document("/a", named{"A": text}, nil),
			`{"swagger":"2.0","paths":{},"definitions":{"B":{"type":"string"}}}`},
		"first without anything": {`{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{}}`,
			document("/b", named{"A": number}, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := &spec.Swagger{}
			if err := want.UnmarshalJSON([]byte(parts[0])); err != nil {
				t.Fatal(err)
			}
			got, err := parseSwagger([]byte(parts[0]))
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range parts[1:] {
				source := &spec.Swagger{}
				if err := source.UnmarshalJSON([]byte(part)); err != nil {
					t.Fatal(err)
				}
				if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(want, source); err != nil {
					t.Fatal(err)
				}
				if err := got.add([]byte(part)); err != nil {
					t.Fatal(err)
				}
			}
			wantText, err := want.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := got.write(&text); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decoded(t, wantText), decoded(t, text.Bytes())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestMerge_AddsKinds: the kinds that another server gives to a definition without any are
// added. Upstream panics.
func TestMerge_AddsKinds(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]map[string]string{
		"alone":           {"A": kinds("a")},
		"with a renaming": {"A": kinds("a"), "B": `{"type":"string"}`},
	} {
		whole, err := parseSwagger([]byte(document("/a",
			map[string]string{"A": `{"type":"object","description":"a <kind>"}`, "B": `{"type":"number"}`}, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := whole.add([]byte(document("/b", other, nil))); err != nil ||
			!strings.Contains(string(whole.definitions["A"]), `"group":"a"`) {
			t.Errorf("%s: %s, %v", name, whole.definitions["A"], err)
		}
	}
}

func decoded(t testing.TB, text []byte) (value map[string]any) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for name, member := range value { // upstream writes no empty members
		if m, ok := member.(map[string]any); ok && len(m) == 0 && name != pathsMember {
			delete(value, name)
		}
	}
	return value
}

// release is the release's document, as kube-openapi encodes it.
func release(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "api/openapi-spec/swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	whole := &spec.Swagger{}
	if err := whole.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	if text, err = whole.MarshalJSON(); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestProtobufV2_EqualsUpstream compares the protobuf of the release's document, and of a
// small one, with upstream's. The text that is parsed and written again is the same.
func TestProtobufV2_EqualsUpstream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	for name, text := range map[string][]byte{
		"release": release(t),
		"small":   []byte(`{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{}}`),
	} {
		parsed, err := parseSwagger(text)
		if err != nil {
			t.Fatal(err)
		}
		var written bytes.Buffer
		if err := parsed.write(&written); err != nil || !bytes.Equal(written.Bytes(), text) {
			t.Errorf("%s: the text is another one (%v)", name, err)
		}
		want, err := handler.ToProtoBinary(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ToProtobufV2(text)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the protobuf is another one, %d bytes for %d (%v)", name, len(got), len(want), err)
		}
	}
}

// A document that is encoded after another one takes the messages of what both have, and is what it is without.
func TestProtobufV2_TakesWhatIsTheSame(t *testing.T) {
	t.Parallel()
	text := func(paths, definitions string) []byte {
		return []byte(`{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{` + paths +
			`},"definitions":{` + definitions + `}}`)
	}
	path := func(name, of string) string {
		return fmt.Sprintf(`%q:{"get":{"description":%q,"responses":{"200":{"description":"OK"}}}}`, name, of)
	}
	definition := func(name, of string) string { return fmt.Sprintf(`%q:{"description":%q,"type":"object"}`, name, of) }
	last := text(path("/a", "same")+","+path("/b", "old")+","+path("/c", "gone"),
		definition("A", "same")+","+definition("C", "old"))
	next := text(path("/a", "same")+","+path("/aa", "new")+","+path("/b", "changed"),
		definition("A", "same")+","+definition("B", "new")+","+definition("C", "changed"))
	encode := func(text []byte) []byte {
		t.Helper()
		encoded, err := handler.ToProtoBinary(text)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	if got, err := toProtobufV2(next, last, encode(last)); err != nil || !bytes.Equal(got, encode(next)) {
		t.Errorf("the protobuf is another one than without the last one, %v", err)
	}
	// What is taken is not encoded again: it has the words of the last message.
	marked := func(text []byte) []byte { return bytes.ReplaceAll(text, []byte(`"same"`), []byte(`"mark"`)) }
	got, err := toProtobufV2(next, last, encode(marked(last)))
	if err != nil || !bytes.Equal(got, encode(marked(next))) {
		t.Errorf("what is the same was encoded again, %v", err)
	}
	if _, err := toProtobufV2(next, last, []byte{1}); err == nil {
		t.Error("a damaged message was taken")
	}
}

// BenchmarkMerge merges documents of 12 MB in all, and encodes the result as JSON and as
// protobuf. Such a document takes a process from 18 MB to 47 as JSON, and from 18 to 61 as
// protobuf (TestMerge_TakesLittleMemory); by way of objects, from 20 to 170 and to 200.
func BenchmarkMerge(b *testing.B) {
	sources := map[string]Source{"a": partsOf(release(b)), "b": partsOf(definitions()...)}
	for b.Loop() {
		whole, _, err := merge(context.Background(), sources)
		if err != nil {
			b.Fatal(err)
		}
		_, compressed, err := whole.encode()
		if err != nil {
			b.Fatal(err)
		}
		text, err := Decompress(compressed)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(text)))
		if _, err := ToProtobufV2(text); err != nil {
			b.Fatal(err)
		}
	}
}

// definitions are the documents of 90 large definitions, 10 MB in all.
func definitions() (documents [][]byte) {
	for i := range 90 {
		properties := make([]string, 500)
		for j := range properties {
			properties[j] = fmt.Sprintf(`"property%d":{"type":"string","description":%q}`, j,
				strings.Repeat("what it says ", 12))
		}
		documents = append(documents, []byte(document(fmt.Sprintf("/apis/g%d", i), map[string]string{
			fmt.Sprintf("K%d", i): `{"type":"object","properties":{` + strings.Join(properties, ",") + `}}`,
			"Common":              kinds("common"),
		}, nil)))
	}
	return documents
}

func partsOf(documents ...[]byte) Source {
	return Source{V2: func(_ context.Context, add func([]byte) error) error {
		for _, document := range documents {
			if err := add(document); err != nil {
				return err
			}
		}
		return nil
	}}
}
