package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// FuzzQuery_ShowsNoOtherRows asks generated statements as a user who may list nothing: neither an answer nor
// an error has a part of an object, and no statement harms the process.
func FuzzQuery_ShowsNoOtherRows(f *testing.F) {
	const canary = "zqxj"
	fixture := newFixture(f)
	fixture.config.Timeout = 100 * time.Millisecond
	fixture.pod(canary, canary, canary)
	for _, sql := range []string{
		"SELECT * FROM pods", "SELECT count(*) FROM pods a JOIN nodes b ON a.node = b.name", "WITH a AS (SELECT object FROM pods) SELECT * FROM a",
		"SELECT max(name) OVER (PARTITION BY namespace) FROM pods", "SELECT name FROM pods WHERE uid = 'x' OR node IN (SELECT name FROM nodes) ORDER BY 1 LIMIT 3",
		"SELECT * FROM byre_columns WHERE table_name = 'pods'", "SELECT key, value FROM labels WHERE resource = 'pods' OR name > ''", "SELECT * FROM selectors NATURAL JOIN containers", "SELECT * FROM conditions c, owners o WHERE c.name IN (o.name)",
		"EXPLAIN QUERY PLAN SELECT * FROM pods", "SELECT json_each.value FROM pods, json_each(pods.labels)",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if strings.Contains(strings.ToLower(sql), canary) {
			return
		}
		got, err := ask(t.Context(), fixture.Storage, "nobody", sql)
		if strings.Contains(strings.ToLower(got+fmt.Sprint(err)), canary) {
			t.Errorf("%q: %s %v", sql, got, err)
		}
		if status, message := code(err); err != nil && (status < 400 || status >= 500) {
			t.Errorf("%q: %d %s", sql, status, message)
		}
	})
}

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
		x, values := extractor{}, make([][]byte, len(paths))
		for i, path := range paths {
			x.add(i, path)
		}
		x.find([]byte(text), values)
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
