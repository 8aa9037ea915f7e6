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
	for _, text := range []string{`{"a":{"b":{"c":1}},"d":[1,{"a":2}]}`, `{"metadata":{"labels":{"x":"\u00e9\\\""}},"a":{}}`, `{ "d" : null , "a" : "b" }`, `{}`, `{"a":{"b":7},"metadata":3}`} {
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
