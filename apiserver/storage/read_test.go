package storage

import (
	"fmt"
	"testing"

	"byre/sqlstore"
)

// Readers get a record's own bytes, unless they are encrypted or of another encoding. In those
// two cases readers get bytes from the cache of representations.
func TestRecord_SharesItsBytes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){"plain": func(*Config) {}, "encrypted": withPrefix} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, backends()[0], change)
			f.create(t, "ns", "own", "")
			if name == "plain" {
				f.another(t)
			}
			read := func() (texts []string) {
				list, err := f.ListEncoded(t.Context(), "/pods/", all(), f.Stored())
				if err != nil {
					t.Fatal(err)
				}
				for e, err := range list.Items {
					if err != nil {
						t.Fatal(err)
					}
					texts = append(texts, string(e.AppendJSON(nil, true)))
				}
				return texts
			}
			before := fmt.Sprint(read())
			snapshot, err := f.feed.Snapshot(t.Context(), f.records.resource())
			if err != nil {
				t.Fatal(err)
			}
			for e := range snapshot.All("", nil) {
				stored, err := f.serializer.Represent(t.Context(), e, f.Stored())
				if err != nil {
					t.Fatal(err)
				}
				if stored.Shared != (e.Encoding == f.cfg.Encoding && name == "plain") || stored.Shared && &stored.Body[0] != &e.Value[0] {
					t.Errorf("%s: shared is %v", e.Name, stored.Shared)
				}
			}
			if after := fmt.Sprint(read()); after != before {
				t.Errorf("it was %s and is %s", before, after)
			}
		})
	}
}

// another stores a Pod as another version of the program would.
func (f *fixture) another(t *testing.T) {
	t.Helper()
	_, err := f.store.Commit(t.Context(), sqlstore.Write{
		Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "ns", Name: "other"}, Encoding: "another",
		Value: []byte(`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"other","namespace":"ns"}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
}
