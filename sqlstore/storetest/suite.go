package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"byre/sqlstore"
)

// Run runs the suite. open returns a driver on an empty database, which exists until its test
// ends. Run closes the driver.
func Run(t *testing.T, open func(t *testing.T) sqlstore.Driver) {
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
	want := sqlstore.Record{Key: k, UID: "uid-a", Created: 1, Revision: 1, Encoding: "v1", Expires: expires, Value: []byte(`"one"`)}
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
