package encoding

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzDocument: inserting a resourceVersion into an object's bytes equals setting it on the
// decoded object, and an object that does not begin with its kind keeps the order of its
// members.
func FuzzDocument(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"metadata":{}}`, `{"metadata":{"name":"a"},"spec":{"metadata":{"x":"}"}}}`, `{"apiVersion":"v1","kind":"Pod","metadata":{"uid":"u","zone":1}}`,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u","creationTimestamp":null}}`, `{"kind":"Pod","apiVersion":"v1"}`,
		`{"a\"b":"\\","metadata":{"annotations":{"a":"\"}"},"s":{}}}`, `{"a":[{"metadata":{}},"]"],"metadata":{"resource":""}}`, `[]`, `{"metadata":`, `{"metadata":{"\`, "{\"\xff\":1}",
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
		if isObject && !bytes.HasPrefix(body, []byte(`{"kind":`)) && !bytes.Contains(body, []byte(`\`)) && !bytes.Equal(got, want) {
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
