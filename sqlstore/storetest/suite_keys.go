package storetest

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"byre/sqlstore"
)

// oddNames are names that SQL, glob patterns, collations and encodings may treat specially.
var oddNames = []string{
	"a", "A", "aa", "a-b", "a.b", "a b", "a:b", "a/b", "a%b", "a_b", `a\b`, `a'b`, `a"b`, "a;b", "a--b", "a$1", "a?1",
	"a*", "[a]", "{a}", "NULL", "null", "0", "00", "1e3", "-1", "'; DROP TABLE objects; --", " a", "a ", "\t", "\n", "\x01", "\x7f",
	"ä", "a\u0308", "é", "ß", "ss", "Straße", "ж", "中文", "🐄", "\u00ff", "\u0100", "\ufffd", "\U0010ffff", "İ", "ı", "ﬀ",
	strings.Repeat("x", 253), strings.Repeat("ü", 126),
}

// Keys are ordered as bytes, and no character in them is special.
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
	// Pages of one record at an earlier revision have the same order.
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

// A built-in and a custom resource with the same group and plural share no object.
func testOwners(f fixture) {
	builtIn, custom := key("n", "a"), key("n", "a")
	custom.Owner = sqlstore.Custom
	f.revision(create(builtIn, "builtin"))
	f.revision(create(custom, "custom"))
	f.revision(update(custom, 2, "custom 2"))
	if o := f.commit(update(builtIn, 3, "x"))[0]; !sameError(o.Err, &sqlstore.ConflictError{Current: 1}) {
		f.Errorf("update at the revision of the other's object: %+v", o)
	}
	f.revision(remove(builtIn, 1))
	if _, _, err := f.Get(f.Context(), builtIn); !errors.Is(err, sqlstore.ErrNotFound) {
		f.Errorf("get of what was deleted: %v", err)
	}
	if r, _, err := f.Get(f.Context(), custom); err != nil || r.Key != custom || r.Revision != 3 {
		f.Errorf("get of the other's object: %+v, %v", r, err)
	}
	for _, c := range []struct {
		owner sqlstore.Owner
		at    int64
		want  []int64
	}{
		{sqlstore.BuiltIn, 0, nil},
		{sqlstore.Custom, 0, []int64{3}},
		{sqlstore.BuiltIn, 3, []int64{1}},
		{sqlstore.Custom, 2, []int64{2}},
	} {
		var got []int64
		r := sqlstore.Range{Resource: "pods", Owner: c.owner}
		records, _ := f.list(sqlstore.Query{Range: r, At: c.at})
		for _, r := range records {
			got = append(got, r.Revision)
		}
		if !slices.Equal(got, c.want) {
			f.Errorf("%s objects at %d have the revisions %d, want %d", c.owner, c.at, got, c.want)
		}
	}
	var owners []sqlstore.Owner
	for _, c := range f.changes(0) {
		owners = append(owners, c.New.Owner)
	}
	if want := []sqlstore.Owner{sqlstore.BuiltIn, sqlstore.Custom, sqlstore.Custom, sqlstore.BuiltIn}; !slices.Equal(owners, want) {
		f.Errorf("owners in history: %v, want %v", owners, want)
	}
}

// The longest key is stored, however little it compresses. The store refuses a longer key, and only
// the write of that key.
func testLongKeys(f fixture) {
	store, stop := start(f, sqlstore.Options{})
	defer stop()
	random := rand.New(rand.NewPCG(1, 2))
	letters := make([]byte, 3*sqlstore.MaxKeyBytes)
	for i := range letters {
		letters[i] = byte('!' + random.IntN('~'-'!'))
	}
	k := sqlstore.Key{Group: "rbac.authorization.k8s.io", Resource: "roles", Namespace: "n"}
	left := sqlstore.MaxKeyBytes - k.Len()
	k.Name = string(letters[:left])
	c, err := store.Commit(f.Context(), create(k, "v"))
	if err != nil {
		f.Fatalf("key of %d bytes: %v", k.Len(), err)
	}
	f.revision(update(k, c.Revision, "w"))
	for _, n := range []int{left + 1, len(letters)} {
		k.Name = string(letters[:n])
		if _, err := store.Commit(f.Context(), create(k, "v")); !errors.Is(err, sqlstore.ErrKeyTooLong) || !errors.Is(err, sqlstore.ErrInvalid) {
			f.Errorf("key of %d bytes: %v", k.Len(), err)
		}
		if _, _, err := f.Get(f.Context(), k); !errors.Is(err, sqlstore.ErrNotFound) {
			f.Errorf("get by a key of %d bytes: %v", k.Len(), err)
		}
	}
	w := create(key("n", "a"), "v")
	w.Expires = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := store.Commit(f.Context(), w); !errors.Is(err, sqlstore.ErrInvalid) {
		f.Errorf("expiry in %v: %v", w.Expires, err)
	}
}

// A read of a key or range that can't be stored finds nothing, and is no failure of the database. A
// write of such a key or value fails with ErrInvalid.
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
