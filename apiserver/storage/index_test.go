package storage

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

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
			Value: []byte(value), Encoding: []string{"test/v1", "another"}[i%2],
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := f.lister.parseListRequest("/pods/", storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.OneTermEqualSelector("spec.nodeName", "node-7"), GetAttrs: podAttrs,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.lister.waitUntilFresh(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	snapshot, err := f.lister.snapshot(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for range f.lister.candidates(l, snapshot) {
		seen++
	}
	if seen != n/100 {
		t.Errorf("looked at %d of %d objects to find %d", seen, n, n/100)
	}
}
