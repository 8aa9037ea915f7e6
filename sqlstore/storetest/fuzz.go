package storetest

import (
	"fmt"
	"slices"
	"testing"

	"byre/sqlstore"
)

// Fuzz compares the driver with the Model for keys and ranges of any text: a record is found under
// its key and no other, and every range has the same records in the same order.
func Fuzz(f *testing.F, open func(testing.TB) sqlstore.Driver) {
	const writes = 8 // the bit of inputs that also write, which is slow
	for _, name := range oddNames {
		f.Add(name, name, name, name, byte(1|writes))
		f.Add("same", name, "same", "same", byte(3))
		f.Add(name, "same", "", "a", byte(0))
	}
	f.Add("", "", "\x00", "", byte(7|writes))
	f.Add("\xff", "a", "\xff", "\x80", byte(2))
	f.Add("", "a\x00b", "", "", byte(5|writes))
	driver, model := open(f), NewModel()
	f.Cleanup(func() { driver.Close() })
	for _, d := range []sqlstore.Driver{driver, model} {
		x := fixture{f, d}
		for _, name := range oddNames {
			x.revision(create(key("same", name), name))
			x.revision(create(key(name, "same"), name))
		}
	}
	f.Fuzz(func(t *testing.T, namespace, name, afterNamespace, afterName string, bits byte) {
		actual, expected := fixture{t, driver}, fixture{t, model}
		k := key(namespace, name)
		w := create(k, "fuzzed")
		if bits&writes != 0 && w.Check() == nil {
			a, b := actual.commit(w)[0], expected.commit(w)[0]
			if a.Revision != b.Revision || !sameError(a.Err, b.Err) {
				t.Fatalf("create %q: %+v, the model says %+v", k, a, b)
			}
			if a.Err == nil {
				defer actual.commit(remove(k, a.Revision))
				defer expected.commit(remove(k, b.Revision))
			}
		}
		q := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, Limit: int(bits >> 4)}
		if bits&1 != 0 {
			q.Namespace = namespace
		}
		if bits&2 != 0 {
			q.Name = name
		}
		if bits&4 != 0 {
			q.After = &sqlstore.Position{Namespace: afterNamespace, Name: afterName}
		}
		got, listed, err := collect(t.Context(), driver, q)
		want, modelled, wantErr := collect(t.Context(), model, q)
		if !sameError(err, wantErr) || listed != modelled {
			t.Fatalf("list %+v: %+v, %v; the model says %+v, %v", q, listed, err, modelled, wantErr)
		}
		if !slices.Equal(describe(got), describe(want)) {
			t.Errorf("list %+v: %v; the model has %v", q, describe(got), describe(want))
		}
	})
}

func describe(records []sqlstore.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf("%q %d %s", r.Key, r.Revision, r.Value))
	}
	return all
}
