package storetest

import (
	"errors"
	"slices"
	"strings"

	"byre/sqlstore"
)

// oddNames are what SQL, globs, collations and encodings are known to trip
// over.
var oddNames = []string{
	"a", "A", "aa", "a-b", "a.b", "a b", "a:b", "a/b", "a%b", "a_b", `a\b`, `a'b`, `a"b`, "a;b", "a--b", "a$1", "a?1",
	"a*", "[a]", "{a}", "NULL", "null", "0", "00", "1e3", "-1", "'; DROP TABLE objects; --", " a", "a ", "\t", "\n", "\x01", "\x7f",
	"ä", "a\u0308", "é", "ß", "ss", "Straße", "ж", "中文", "🐄", "\u00ff", "\u0100", "\ufffd", "\U0010ffff", "İ", "ı", "ﬀ",
	strings.Repeat("x", 253), strings.Repeat("ü", 500),
}

// Keys order as bytes, and nothing in them means anything.
func testOddKeys(f fixture) {
	for _, name := range oddNames {
		k := sqlstore.Key{Group: name, Resource: name, Namespace: name, Name: name}
		at := f.revision(create(k, name))
		if got, _, err := f.Get(f.Context(), k); err != nil || got.Key != k || got.Revision != at || string(got.Value) != string(quoted(name)) {
			f.Errorf("get %q: %+v, %v", name, got, err)
		}
		if records, _ := f.list(sqlstore.Query{Range: sqlstore.Range{Group: name, Resource: name}}); len(records) != 1 || records[0].Key != k {
			f.Errorf("list %q: %+v", name, records)
		}
		f.revision(create(key(name, "same"), name))
		f.revision(create(key("same", name), name))
	}
	sorted := slices.Sorted(slices.Values(oddNames))
	records, _ := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods", Namespace: "same"}})
	for i, r := range records {
		if r.Name != sorted[i] {
			f.Fatalf("name %d is %q, want %q", i, r.Name, sorted[i])
		}
	}
	records, listed := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods", Name: "same"}})
	if len(records) != len(sorted) {
		f.Fatalf("%d namespaces, want %d", len(records), len(sorted))
	}
	for i, r := range records {
		if r.Namespace != sorted[i] {
			f.Fatalf("namespace %d is %q, want %q", i, r.Namespace, sorted[i])
		}
	}
	// One by one, now and then, the order is the same.
	for _, r := range records {
		f.revision(remove(r.Key, r.Revision))
	}
	q := sqlstore.Query{Range: sqlstore.Range{Resource: "pods", Name: "same"}, At: listed.Revision, Limit: 1}
	for i := range sorted {
		page, _ := f.list(q)
		if len(page) != 1 || page[0].Namespace != sorted[i] {
			f.Fatalf("page %d: %+v, want %q", i, page, sorted[i])
		}
		q.After = &sqlstore.Position{Namespace: page[0].Namespace, Name: page[0].Name}
	}
}

// What cannot be stored is not there, and asking for it is no failure.
func testUnstorable(f fixture) {
	store, stop := start(f, sqlstore.Options{})
	defer stop()
	f.revision(create(key("n", "a"), "v"))
	for _, bad := range []string{"\x00", "a\x00b", "\xff", "a\xc3"} {
		for _, k := range []sqlstore.Key{
			key("n", bad), key(bad, "a"), {Resource: bad, Name: "a"}, {Group: bad, Resource: "pods", Name: "a"},
		} {
			_, snapshot, err := f.Get(f.Context(), k)
			if last := f.state().Revision; !errors.Is(err, sqlstore.ErrNotFound) || snapshot != last {
				f.Errorf("get %q: snapshot %d of %d, %v", k, snapshot, last, err)
			}
			if _, err := store.Commit(f.Context(), create(k, "v")); !errors.Is(err, sqlstore.ErrInvalid) {
				f.Errorf("create %q: %v", k, err)
			}
		}
		for _, r := range []sqlstore.Range{
			{Resource: "pods", Namespace: bad}, {Resource: "pods", Name: bad}, {Group: bad, Resource: "pods"}, {Resource: bad},
		} {
			if records, _ := f.list(sqlstore.Query{Range: r}); len(records) != 0 {
				f.Errorf("list %+v: %+v", r, records)
			}
		}
		after := sqlstore.Range{Resource: "pods", After: &sqlstore.Position{Namespace: "n", Name: bad}}
		if _, _, err := collect(f.Context(), f.Driver, sqlstore.Query{Range: after}); !errors.Is(err, sqlstore.ErrInvalid) {
			f.Errorf("list after %q: %v", bad, err)
		}
		w := create(key("n", "b"), "v")
		w.Value = []byte(bad)
		if _, err := store.Commit(f.Context(), w); !errors.Is(err, sqlstore.ErrInvalid) {
			f.Errorf("value %q: %v", bad, err)
		}
		w = create(key("n", "b"), "v")
		w.Author = sqlstore.Author{User: bad, Verb: bad, AuditID: bad}
		c, err := store.Commit(f.Context(), w)
		if err != nil || !strings.Contains(c.Author.User, "\ufffd") {
			f.Fatalf("author %q: %+v, %v", bad, c.Author, err)
		}
		if _, err := store.Commit(f.Context(), remove(w.Key, c.Revision)); err != nil {
			f.Fatal(err)
		}
	}
}
