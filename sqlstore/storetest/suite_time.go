package storetest

import (
	"errors"
	"fmt"
	"time"

	"byre/sqlstore"
)

func testCompaction(f fixture) {
	k := key("n", "a")
	f.revision(create(k, "1"))
	f.revision(create(key("n", "b"), "1"))
	for i := range 20 {
		f.revision(update(k, []int64{1, int64(i + 2)}[min(i, 1)], fmt.Sprint(i)))
	}
	f.compact(0)
	if state := f.state(); state.Compacted != 0 {
		f.Fatalf("compacting nothing moved the compacted revision to %d", state.Compacted)
	}
	deleted, _, err := f.DeleteHistory(f.Context(), sqlstore.Deletion{Of: k.Of(), UpTo: 10, Limit: 4})
	if state := f.state(); err != nil || deleted != 4 || state.Compacted != 4 {
		f.Fatalf("first chunk: deleted %d, %v, %+v", deleted, err, state)
	}
	if deleted := f.compact(10); deleted != 6 { // the last chunk is not full
		f.Errorf("deleted %d changes from 5 to 10", deleted)
	}
	if deleted := f.compact(5); deleted != 0 { // it does not move back
		f.Errorf("deleted %d changes that were compacted before", deleted)
	}
	state := f.state()
	if state.Revision != 22 || state.Compacted != 10 {
		f.Fatalf("state %+v, want 22 and 10", state)
	}
	pods := sqlstore.Range{Resource: "pods"}
	for at := int64(1); at <= 22; at++ {
		records, _, err := collect(f.Context(), f.Driver, sqlstore.Query{Range: pods, At: at})
		_, changesErr := f.Changes(f.Context(), sqlstore.ChangesQuery{After: at, Limit: 5})
		if at < 10 {
			if !errors.Is(err, sqlstore.ErrCompacted) || !errors.Is(changesErr, sqlstore.ErrCompacted) {
				f.Errorf("at %d: list %v, changes %v", at, err, changesErr)
			}
			continue
		}
		if err != nil || changesErr != nil || len(records) != 2 || records[0].Revision != at {
			f.Errorf("at %d: list %+v, %v, changes %v", at, records, err, changesErr)
		}
	}
	// When all history is compacted, the last revision stays.
	if deleted := f.compact(1000); deleted != 12 {
		f.Errorf("deleted %d changes from 11 to 22", deleted)
	}
	if state := f.state(); state.Revision != 22 || state.Compacted != 22 {
		f.Errorf("state %+v, want 22 and 22", state)
	}
	if got := f.revision(update(k, 22, "x")); got != 23 {
		f.Errorf("revision %d after compacting everything, want 23", got)
	}
	if c := f.changes(22); len(c) != 1 || c[0].Old == nil || c[0].Old.Revision != 22 {
		f.Errorf("changes after compacting everything: %+v", c)
	}
}

// testCompactionOf compacts one resource: the past of another one can be read as before.
func testCompactionOf(f fixture) {
	quiet, busy := sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: "quiet"}, key("n", "busy")
	f.revision(create(quiet, "1"))
	f.revision(create(busy, "2"))
	f.revision(update(quiet, 1, "3"))
	last := f.revision(update(busy, 2, "4"))
	for range 20 {
		last = f.revision(update(busy, last, "v"))
	}
	f.revision(update(quiet, 3, "5"))
	upTo := last - 1
	for n := limitOfDeletion; n == limitOfDeletion; {
		var err error
		if n, _, err = f.DeleteHistory(f.Context(), sqlstore.Deletion{Of: busy.Of(), UpTo: upTo, Limit: limitOfDeletion}); err != nil {
			f.Fatal(err)
		}
	}
	if state := f.state(); state.Compacted != upTo {
		f.Errorf("the store is compacted up to %d, want %d", state.Compacted, upTo)
	}
	none := sqlstore.Resource{Resource: "none"}
	for of, want := range map[sqlstore.Resource]int64{quiet.Of(): 0, busy.Of(): upTo, none: upTo} {
		if got, err := f.Compacted(f.Context(), of); err != nil || got != want {
			f.Errorf("%v is compacted up to %d, %v; want %d", of, got, err, want)
		}
		for _, at := range []int64{1, 2, 3, upTo - 1, upTo, last} {
			_, _, err := collect(f.Context(), f.Driver, sqlstore.Query{Range: sqlstore.Range{Resource: of.Resource}, At: at, Limit: 1, Count: true})
			_, changesErr := f.Changes(f.Context(), sqlstore.ChangesQuery{After: at, Of: &of, Limit: 5})
			if isCompacted := at < want; errors.Is(err, sqlstore.ErrCompacted) != isCompacted || errors.Is(changesErr, sqlstore.ErrCompacted) != isCompacted {
				f.Errorf("%v at %d: list %v, changes %v", of, at, err, changesErr)
			}
		}
	}
	if _, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: upTo - 1, Limit: 5}); !errors.Is(err, sqlstore.ErrCompacted) {
		f.Errorf("changes of all resources: %v", err)
	}
	for at, want := range map[int64]string{1: `"1"`, 2: `"1"`, 3: `"3"`, upTo: `"3"`, last + 1: `"5"`} {
		records, _ := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "configmaps"}, At: at})
		if len(records) != 1 || string(records[0].Value) != want {
			f.Errorf("at %d: %+v, want %s", at, records, want)
		}
	}
	of := quiet.Of()
	changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: 1, Of: &of, Limit: 5})
	if err != nil || len(changes) != 2 || changes[0].Revision != 3 || string(changes[0].New.Value) != `"3"` || string(changes[0].Old.Value) != `"1"` || changes[1].Revision != last+1 {
		f.Errorf("changes: %+v, %v", changes, err)
	}
	// Of a resource that is new the store knows nothing about an epoch before.
	f.revision(create(sqlstore.Key{Resource: "none", Name: "a"}, "1"))
	if got, err := f.Compacted(f.Context(), none); err != nil || got != upTo {
		f.Errorf("a new resource is compacted up to %d, %v; want %d", got, err, upTo)
	}
}

// testCompactOlder compacts a quiet resource for an operator: the changes of others after its last one can be
// read as before.
func testCompactOlder(f fixture) {
	quiet := sqlstore.Key{Resource: "configmaps", Namespace: "n", Name: "quiet"}
	f.revision(create(key("n", "before"), "1"))
	last := f.revision(create(quiet, "2"))
	f.revision(create(key("n", "after"), "3"))
	store := sqlstore.New(f.Driver, sqlstore.Options{})
	for range 2 { // the second time nothing is left
		compacted, err := store.CompactOlder(f.Context(), sqlstore.Compaction{Of: sqlstore.GroupResource{Resource: "configmaps"}})
		if err != nil || compacted.Revision != last {
			f.Errorf("compacted up to %+v, %v; want %d", compacted, err, last)
		}
		if changes := f.changes(last); len(changes) != 1 {
			f.Errorf("changes after it: %v", changes)
		}
	}
	of := quiet.Of()
	if changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{Of: &of, Kept: true, Limit: 10}); err != nil || len(changes) > 0 {
		f.Errorf("changes that are left: %v, %v", changes, err)
	}
}

func testExpiry(f fixture) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	expiring := func(name string, at time.Time) sqlstore.Write {
		w := create(key("n", name), "v")
		w.Expires = at
		return w
	}
	f.commit(
		expiring("later", now.Add(anHour)), expiring("second", now.Add(-time.Second)),
		expiring("first", now.Add(-time.Minute)), expiring("now", now), create(key("n", "never"), "v"),
	)
	expired, err := f.Expired(f.Context(), now, 10)
	if err != nil || len(expired) != 3 {
		f.Fatalf("expired: %+v, %v", expired, err)
	}
	for i, name := range []string{"first", "second", "now"} {
		if r := expired[i]; r.Name != name || r.Value != nil || r.Revision == 0 || r.UID != "uid-"+name {
			f.Errorf("expired %d: %+v, want %s", i, r, name)
		}
	}
	if expired, err = f.Expired(f.Context(), now, 1); err != nil || len(expired) != 1 || expired[0].Name != "first" {
		f.Errorf("one expired: %+v, %v", expired, err)
	}
	// An update sets a new expiry, or none.
	f.revision(update(key("n", "first"), 3, "v"))
	w := update(key("n", "second"), 2, "v")
	w.Expires = now.Add(anHour)
	f.revision(w)
	if expired, err = f.Expired(f.Context(), now, 10); err != nil || len(expired) != 1 || expired[0].Name != "now" {
		f.Errorf("expired after renewal: %+v, %v", expired, err)
	}
	c := f.changes(6)
	if len(c) != 1 || !c[0].New.Expires.Equal(now.Add(anHour)) || !c[0].Old.Expires.Equal(now.Add(-time.Second)) {
		f.Errorf("expiry in history: %+v", c)
	}
}
