package transcode

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// FuzzExtractor_EqualsDecoding compares what is cut out of a JSON object with what a decoder finds in it.
func FuzzExtractor_EqualsDecoding(f *testing.F) {
	paths := [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}, {"metadata", "labels"}, {"d"}}
	for _, text := range []string{`{"a":{"b":{"c":1}},"d":[1,{"a":2}]}`,
		`{"metadata":{"labels":{"x":"\u00e9\\\""}},"a":{}}`, `{ "d" : null , "a" : "b" }`, `{}`,
		`{"a":{"b":7},"metadata":3}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var decoded map[string]any
		if json.Unmarshal([]byte(text), &decoded) != nil || decoded == nil {
			return
		}
		if written, err := json.Marshal(decoded); err != nil || strings.Contains(string(written), `\u`) {
			return // keys with escapes are none of a schema's
		} else if text = string(written); !bytes.Contains(written, []byte{'"'}) {
			return
		}
		x, values := Extractor{}, make([][]byte, len(paths))
		for i, path := range paths {
			x.Add(i, path)
		}
		x.Find([]byte(text), values)
		for i, path := range paths {
			var want any = decoded
			for _, member := range path {
				object, _ := want.(map[string]any)
				want = object[member]
			}
			var got any
			if values[i] != nil {
				if err := json.Unmarshal(values[i], &got); err != nil {
					t.Fatalf("%s at %v: %q is no JSON", text, path, values[i])
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s at %v: %v, want %v", text, path, got, want)
			}
		}
	})
}

func TestScalarAt_FindsAField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		data, want string
		there, ok  bool
	}{
		{`{"a":{"b":"x"}}`, "x", true, true},
		{`{"c":[1,{"a":2}],"a":{"c":{},"b": 12 }}`, "", false, false}, // not in an encoder's form
		{`{"a":{"b":12}}`, "12", true, true},
		{`{"a":{"b":-3,"c":1}}`, "-3", true, true},
		{`{"a":{"b":true}}`, "true", true, true},
		{`{"a":{"b":1.0}}`, "", false, false},
		{`{"a":{"b":1e3}}`, "", false, false},
		{`{"a":{"b":12345678901234567890}}`, "", false, false},
		{`{"a":{"b":null}}`, "", false, false},
		{`{"a":{"b":{}}}`, "", false, false},
		{`{"a":{"b":"\u0061"}}`, "", false, false},
		{`{"a":null}`, "", false, false},
		{`{"a":{"c":1}}`, "", false, true},
		{`{}`, "", false, true},
	} {
		text, there, ok := ScalarAt([]byte(test.data), []string{"a", "b"})
		if !there {
			text = ""
		}
		if text != test.want || there != test.there || ok != test.ok {
			t.Errorf("%s: %q, %v, %v", test.data, text, there, ok)
		}
	}
}

// FuzzIndexValue: the value that is read at a path without decoding equals the decoder's.
func FuzzIndexValue(f *testing.F) {
	for _, text := range []string{
		`{"spec":{"nodeName":"n"}}`, `{"spec":{"x":{"nodeName":"no"},"nodeName":"yes"}}`, `{"spec":null}`,
		`{"spec":{"nodeName":null}}`, `{"spec":{"nodeName":"a\"b"}}`,
		`{"spec":[{"nodeName":"no"}],"nodeName":"no"}`, `{"other":{"spec":{"nodeName":"no"}}}`, `{"spec":{},"nodeName":"no"}`,
		`{"spec":"nodeName"}`, `{"spec":{"nodeName":"`, `{"a":"{","spec":{"nodeName":"n"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _, _ = ScalarAt(text, []string{"spec", "nodeName"}) // must not panic
		object, body := canonical(text)
		got, there, ok := ScalarAt(body, []string{"spec", "nodeName"})
		if object == nil || !ok {
			return
		}
		spec, isObject := object["spec"].(map[string]any)
		if object["spec"] != nil && !isObject {
			t.Errorf("%s: found %q where there is something else", body, got)
		}
		value, some := spec["nodeName"]
		want, isText := value.(string)
		if some && !isText {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			want = string(text)
		}
		if there != some || there && got != want {
			t.Errorf("%s: found %q (%v), want %q (%v)", body, got, there, want, some)
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
