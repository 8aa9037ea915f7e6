package storage

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/jsontext"
	"byre/sqlstore"
)

// TestList_ByIndexedFieldReadsFewObjects: a list by an indexed field looks only at the
// objects with the value, whichever version of the program wrote them.
func TestList_ByIndexedFieldReadsFewObjects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	const n = 1000
	for i := range n {
		value := fmt.Sprintf(`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p%d","namespace":"ns"},"spec":{"nodeName":"node-%d"}}`, i, i%100)
		_, err := f.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "ns", Name: fmt.Sprintf("p%d", i)},
			Value: []byte(value), Form: []string{"test/v1", "another"}[i%2],
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := f.parseListRequest("/pods/", storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.OneTermEqualSelector("spec.nodeName", "node-7"), GetAttrs: podAttrs,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.waitUntilFresh(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	snapshot, err := f.snapshot(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for range f.candidates(l, snapshot) {
		seen++
	}
	if seen != n/100 {
		t.Errorf("looked at %d of %d objects to find %d", seen, n, n/100)
	}
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
		text, there, ok := jsontext.ScalarAt([]byte(test.data), []string{"a", "b"})
		if !there {
			text = ""
		}
		if text != test.want || there != test.there || ok != test.ok {
			t.Errorf("%s: %q, %v, %v", test.data, text, there, ok)
		}
	}
}
