package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"byre/sqlstore"
)

// run runs the suite. open returns a driver on an empty database, which exists until its test
// ends. run closes the driver.
func run(t *testing.T, open func(testing.TB) sqlstore.Driver) {
	for name, test := range map[string]func(fixture){
		"Lifecycle":      testLifecycle,
		"Preconditions":  testPreconditions,
		"Batch":          testBatch,
		"Requires":       testRequires,
		"RequiresNone":   testRequiresNone,
		"Empty":          testEmpty,
		"Changes":        testChanges,
		"ChangesBySize":  testChangesBySize,
		"ChangesOf":      testChangesOf,
		"RevisionAt":     testRevisionAt,
		"RetentionCount": testRetentionByCount,
		"ListAt":         testListAt,
		"Pages":          testPages,
		"Ranges":         testRanges,
		"OddKeys":        testOddKeys,
		"Owners":         testOwners,
		"LongKeys":       testLongKeys,
		"Unstorable":     testUnstorable,
		"Usage":          testUsage,
		"Compaction":     testCompaction,
		"CompactionOf":   testCompactionOf,
		"CompactOlder":   testCompactOlder,
		"Expiry":         testExpiry,
		"Notes":          testNotes,
		"YieldError":     testYieldError,
		"LargeValue":     testLargeValue,
		"ReadersDuring":  testReadersDuring,
		"AgainstModel":   testAgainstModel,
		"Linearizable":   testLinearizable,
		"ReadIndex":      testReadIndex,
		"StoreBatches":   testStoreBatches,
		"StoreExpires":   testStoreExpires,
		"StoreRetention": testStoreRetention,
		"StoreClock":     testStoreClock,
		"StoreClockOf":   testStoreClockOfEach,
		"StoreShutdown":  testStoreShutdown,
	} {
		t.Run(name, func(t *testing.T) {
			driver := open(t)
			t.Cleanup(func() {
				if err := driver.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test(fixture{TB: t, Driver: driver})
		})
	}
}

func testLifecycle(f fixture) {
	k := key("default", "a")
	expires := time.Now().Add(anHour).UTC().Truncate(time.Microsecond)
	w := create(k, "one")
	w.Expires = expires
	o := f.commit(w)[0]
	if o.Err != nil || o.Revision != 1 || o.Created != 1 || o.Time.IsZero() {
		f.Fatalf("create: %+v", o)
	}
	got, snapshot, err := f.Get(f.Context(), k)
	want := sqlstore.Record{Key: k, UID: "uid-a", Created: 1, Revision: 1, Encoding: "v1", Expires: expires,
		Value: []byte(`"one"`)}
	if err != nil || snapshot != 1 {
		f.Fatalf("get: snapshot %d, %v", snapshot, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("after create (-want +got):\n%s", diff)
	}

	o = f.commit(update(k, 1, "two"))[0]
	if o.Err != nil || o.Revision != 2 || o.Created != 1 || o.UID != "uid-a" {
		f.Fatalf("update: %+v", o)
	}
	got, snapshot, err = f.Get(f.Context(), k)
	want = sqlstore.Record{Key: k, UID: "uid-a", Created: 1, Revision: 2, Encoding: "v2", Value: []byte(`"two"`)}
	if err != nil || snapshot != 2 {
		f.Fatalf("get: snapshot %d, %v", snapshot, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("after update (-want +got):\n%s", diff)
	}

	o = f.commit(remove(k, 2))[0]
	if o.Err != nil || o.Revision != 3 || o.Created != 1 || o.UID != "uid-a" {
		f.Fatalf("delete: %+v", o)
	}
	if _, snapshot, err = f.Get(f.Context(), k); !errors.Is(err, sqlstore.ErrNotFound) || snapshot != 3 {
		f.Fatalf("get of what was deleted: snapshot %d, %v", snapshot, err)
	}
	if o = f.commit(create(k, "three"))[0]; o.Revision != 4 || o.Created != 4 {
		f.Fatalf("create after delete: %+v", o)
	}
}

func testPreconditions(f fixture) {
	k := key("default", "a")
	f.revision(create(k, "one"))
	f.revision(update(k, 1, "two"))
	for name, c := range map[string]struct {
		write sqlstore.Write
		want  error
	}{
		"create of what exists":  {create(k, "x"), sqlstore.ErrExists},
		"update of old revision": {update(k, 1, "x"), &sqlstore.ConflictError{Current: 2}},
		"update from the future": {update(k, 3, "x"), &sqlstore.ConflictError{Current: 2}},
		"delete of old revision": {remove(k, 1), &sqlstore.ConflictError{Current: 2}},
		"update of nothing":      {update(key("default", "b"), 2, "x"), sqlstore.ErrNotFound},
		"delete of nothing":      {remove(key("default", "b"), 2), sqlstore.ErrNotFound},
		"another's revision":     {update(key("other", "a"), 2, "x"), sqlstore.ErrNotFound},
	} {
		o := f.commit(c.write)[0]
		if o.Revision != 0 || !sameError(o.Err, c.want) {
			f.Errorf("%s: %+v, want error %v", name, o, c.want)
		}
	}
	if state := f.state(); state.Revision != 2 {
		f.Errorf("failed preconditions moved the revision to %d", state.Revision)
	}
	if got := f.changes(0); len(got) != 2 {
		f.Errorf("failed preconditions left changes: %d", len(got))
	}
}

// A failed precondition is the outcome of its own write, and takes no revision.
func testBatch(f fixture) {
	f.commit(create(key("n", "a"), "1"), create(key("n", "b"), "1"), create(key("n", "c"), "1"))
	got := f.commit(
		update(key("n", "a"), 1, "2"), // 4
		create(key("n", "b"), "2"),    // exists
		remove(key("n", "b"), 1),      // conflict
		remove(key("n", "c"), 3),      // 5
		create(key("n", "d"), "2"),    // 6
		update(key("n", "e"), 1, "2"), // not found
	)
	wantRevisions := []int64{4, 0, 0, 5, 6, 0}
	wantErrs := []error{nil, sqlstore.ErrExists, &sqlstore.ConflictError{Current: 2}, nil, nil, sqlstore.ErrNotFound}
	for i, o := range got {
		if o.Revision != wantRevisions[i] || !sameError(o.Err, wantErrs[i]) {
			f.Errorf("write %d: revision %d, %v; want %d, %v", i, o.Revision, o.Err, wantRevisions[i], wantErrs[i])
		}
	}
	// The store commits an empty batch to find out whether the database takes writes.
	if got, err := f.Commit(f.Context(), nil); err != nil || len(got) > 0 {
		f.Errorf("empty batch: %v, %v", got, err)
	}
	if state := f.state(); state.Revision != 6 {
		f.Errorf("revision %d, want 6", state.Revision)
	}
}

func testEmpty(f fixture) {
	state := f.state()
	if state.Revision != 0 || state.Compacted != 0 || state.Epoch == "" {
		f.Errorf("state of an empty store: %+v", state)
	}
	if age := time.Since(state.Time); age < -anHour || age > anHour {
		f.Errorf("the database's clock says %v, this process's %v", state.Time, time.Now())
	}
	records, listed := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}})
	if len(records) != 0 || listed != (sqlstore.ListResult{}) {
		f.Errorf("list: %v, %+v", records, listed)
	}
	if _, snapshot, err := f.Get(f.Context(), key("a", "b")); snapshot != 0 || !errors.Is(err, sqlstore.ErrNotFound) {
		f.Errorf("get: %d, %v", snapshot, err)
	}
	if changes := f.changes(0); len(changes) != 0 {
		f.Errorf("changes: %v", changes)
	}
	if _, _, err := collect(f.Context(), f.Driver, sqlstore.Query{At: 1}); !errors.Is(err, sqlstore.ErrFuture) {
		f.Errorf("list in the future: %v", err)
	}
}

// testRequires: a write that requires another object takes effect only while that object has the
// UID and the generation that the write requires.
func testRequires(f fixture) {
	definition := sqlstore.Key{Group: "g", Resource: "definitions", Name: "widgets.g"}
	instance := func(name string) sqlstore.Key {
		return sqlstore.Key{Group: "g", Resource: "widgets", Owner: sqlstore.Custom, Namespace: "n", Name: name}
	}
	requiring := func(w sqlstore.Write, uid string, generation int64) sqlstore.Write {
		w.Requires = &sqlstore.Requirement{Key: definition, UID: uid, Generation: generation}
		return w
	}
	outcome := func(what string, w sqlstore.Write, want error) sqlstore.Outcome {
		f.Helper()
		// The write without a requirement shows that only the other one fails.
		other := create(instance("other-"+what), "x")
		got := f.commit(w, other)
		if !sameError(got[0].Err, want) || got[1].Err != nil {
			f.Errorf("%s: %v, want %v; a write beside it: %v", what, got[0].Err, want, got[1].Err)
		}
		return got[0]
	}
	put := func(w sqlstore.Write, generation int64) int64 {
		w.Generation = generation
		return f.revision(w)
	}
	const uid = "uid-widgets.g"
	outcome("of nothing", requiring(create(instance("a"), "1"), uid, 1), sqlstore.ErrRequired)
	at := put(create(definition, "one"), 1)
	a := outcome("create", requiring(create(instance("a"), "1"), uid, 1), nil)
	outcome("another uid", requiring(create(instance("b"), "1"), "uid-2", 1), sqlstore.ErrRequired)
	outcome("another generation", requiring(create(instance("b"), "1"), uid, 2), sqlstore.ErrRequired)
	outcome("exists", requiring(create(instance("a"), "1"), uid, 1), sqlstore.ErrExists)
	outcome("exists, another generation", requiring(create(instance("a"), "1"), uid, 2), sqlstore.ErrRequired)
	at = put(update(definition, at, "two"), -2)
	outcome("update of before", requiring(update(instance("a"), a.Revision, "2"), uid, 1), sqlstore.ErrRequired)
	outcome("create of before", requiring(create(instance("b"), "1"), uid, 2), sqlstore.ErrRequired)
	a = outcome("update", requiring(update(instance("a"), a.Revision, "2"), uid, -2), nil)
	at = put(update(definition, at, "three"), 0)
	a = outcome("unknown generation", requiring(update(instance("a"), a.Revision, "3"), uid, 7), nil)
	f.revision(remove(definition, at))
	imported := create(definition, "four")
	imported.UID = ""
	at = put(imported, 0)
	a = outcome("unknown uid", requiring(update(instance("a"), a.Revision, "4"), uid, 7), nil)
	f.revision(remove(definition, at))
	outcome("of what was deleted", requiring(remove(instance("a"), a.Revision), uid, 7), sqlstore.ErrRequired)
	outcome("without", remove(instance("a"), a.Revision), nil)
}

// testRequiresNone: a delete that requires a resource without objects takes effect only when the
// last of them is deleted.
func testRequiresNone(f fixture) {
	definition := sqlstore.Key{Group: "g", Resource: "definitions", Name: "widgets.g"}
	instance := sqlstore.Key{Group: "g", Resource: "widgets", Owner: sqlstore.Custom, Name: "a"}
	builtIn := instance
	builtIn.Owner = sqlstore.BuiltIn
	f.revision(create(builtIn, "a built-in resource of the same name"))
	at, a := f.revision(create(definition, "x")), f.revision(create(instance, "x"))
	last := remove(definition, at)
	last.RequiresNone = &sqlstore.Resource{Group: "g", Resource: "widgets", Owner: sqlstore.Custom}
	if o := f.commit(last)[0]; !sameError(o.Err, sqlstore.ErrInUse) {
		f.Errorf("with an object: %+v", o)
	}
	f.revision(remove(instance, a))
	if o := f.commit(last)[0]; o.Err != nil || o.Revision != a+2 {
		f.Errorf("without objects: %+v", o)
	}
	never := create(definition, "x")
	never.RequiresNone = &sqlstore.Resource{Group: "g", Resource: "never", Owner: sqlstore.Custom}
	f.revision(never)
}

// oddNames are names that SQL, glob patterns, collations and encodings may treat specially.
var oddNames = []string{
	"a", "A", "aa", "a-b", "a.b", "a b", "a:b", "a/b", "a%b", "a_b", `a\b`, `a'b`, `a"b`, "a;b", "a--b", "a$1", "a?1",
	"a*", "[a]", "{a}", "NULL", "null", "0", "00", "1e3", "-1", "'; DROP TABLE objects; --", " a", "a ", "\t", "\n",
	"\x01", "\x7f",
	"ä", "a\u0308", "é", "ß", "ss", "Straße", "ж", "中文", "🐄", "\u00ff", "\u0100", "\ufffd", "\U0010ffff", "İ", "ı", "ﬀ",
	strings.Repeat("x", 253), strings.Repeat("ü", 126),
}

// Keys are ordered as bytes, and no character in them is special.
func testOddKeys(f fixture) {
	for _, name := range oddNames {
		k := sqlstore.Key{Group: name, Resource: name, Namespace: name, Name: name}
		at := f.revision(create(k, name))
		if got, _, err := f.Get(f.Context(), k); err != nil || got.Key != k || got.Revision != at ||
			string(got.Value) != string(quoted(name)) {
			f.Errorf("get %q: %+v, %v", name, got, err)
		}
		if records, _ := f.list(sqlstore.Query{Range: sqlstore.Range{Group: name, Resource: name}}); len(records) != 1 ||
			records[0].Key != k {
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
	if want := []sqlstore.Owner{sqlstore.BuiltIn, sqlstore.Custom, sqlstore.Custom,
		sqlstore.BuiltIn}; !slices.Equal(owners, want) {
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
		if _, err := store.Commit(f.Context(), create(k, "v")); !errors.Is(err, sqlstore.ErrKeyTooLong) ||
			!errors.Is(err, sqlstore.ErrInvalid) {
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

// fuzz compares the driver with the Model for keys and ranges of any text: a record is found under
// its key and no other, and every range has the same records in the same order.
func fuzz(f *testing.F, open func(testing.TB) sqlstore.Driver) {
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

func (f fixture) list(q sqlstore.Query) ([]sqlstore.Record, sqlstore.ListResult) {
	f.Helper()
	records, listed, err := collect(f.Context(), f.Driver, q)
	if err != nil {
		f.Fatalf("list %+v: %v", q, err)
	}
	return records, listed
}

func (f fixture) changes(after int64) []sqlstore.Change {
	f.Helper()
	changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: after, Limit: 1_000_000})
	if err != nil {
		f.Fatalf("changes after %d: %v", after, err)
	}
	return changes
}

// sameError reports whether two errors match the same errors of sqlstore.
func sameError(a, b error) bool {
	var x, y *sqlstore.ConflictError
	if errors.As(a, &x) && errors.As(b, &y) {
		return *x == *y
	}
	for _, sentinel := range []error{
		sqlstore.ErrExists, sqlstore.ErrNotFound, sqlstore.ErrConflict, sqlstore.ErrRequired, sqlstore.ErrInUse,
		sqlstore.ErrCompacted,
		sqlstore.ErrFuture, sqlstore.ErrInvalid, sqlstore.ErrUnavailable, sqlstore.ErrUnknown, sqlstore.ErrClosed,
	} {
		if errors.Is(a, sentinel) != errors.Is(b, sentinel) {
			return false
		}
	}
	return (a == nil) == (b == nil)
}

// anHour is longer than any test takes.
const anHour = time.Hour
