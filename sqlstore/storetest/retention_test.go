package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		if n, _, err = f.DeleteHistory(f.Context(),
			sqlstore.Deletion{Of: busy.Of(), UpTo: upTo, Limit: limitOfDeletion}); err != nil {
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
			_, _, err := collect(f.Context(), f.Driver,
				sqlstore.Query{Range: sqlstore.Range{Resource: of.Resource}, At: at, Limit: 1, Count: true})
			_, changesErr := f.Changes(f.Context(), sqlstore.ChangesQuery{After: at, Of: &of, Limit: 5})
			if isCompacted := at < want; errors.Is(err, sqlstore.ErrCompacted) != isCompacted ||
				errors.Is(changesErr, sqlstore.ErrCompacted) != isCompacted {
				f.Errorf("%v at %d: list %v, changes %v", of, at, err, changesErr)
			}
		}
	}
	if _, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: upTo - 1, Limit: 5}); !errors.Is(err,
		sqlstore.ErrCompacted) {
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
	if err != nil || len(changes) != 2 || changes[0].Revision != 3 || string(changes[0].New.Value) != `"3"` ||
		string(changes[0].Old.Value) != `"1"` || changes[1].Revision != last+1 {
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
		compacted, err := store.CompactOlder(f.Context(),
			sqlstore.Compaction{Of: sqlstore.GroupResource{Resource: "configmaps"}})
		if err != nil || compacted.Revision != last {
			f.Errorf("compacted up to %+v, %v; want %d", compacted, err, last)
		}
		if changes := f.changes(last); len(changes) != 1 {
			f.Errorf("changes after it: %v", changes)
		}
	}
	of := quiet.Of()
	if changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{Of: &of, Kept: true, Limit: 10}); err != nil ||
		len(changes) > 0 {
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
	expired, err := f.Expired(f.Context(), time.Time{}, now, 10)
	if err != nil || len(expired) != 3 {
		f.Fatalf("expired: %+v, %v", expired, err)
	}
	for i, name := range []string{"first", "second", "now"} {
		if r := expired[i]; r.Name != name || r.Value != nil || r.Revision == 0 || r.UID != "uid-"+name {
			f.Errorf("expired %d: %+v, want %s", i, r, name)
		}
	}
	if expired, err = f.Expired(f.Context(), time.Time{}, now, 1); err != nil || len(expired) != 1 || expired[0].Name != "first" {
		f.Errorf("one expired: %+v, %v", expired, err)
	}
	if expired, err = f.Expired(f.Context(), now.Add(-time.Second), now, 10); err != nil || len(expired) != 1 ||
		expired[0].Name != "now" {
		f.Errorf("expired after a time: %+v, %v", expired, err)
	}
	// An update sets a new expiry, or none.
	f.revision(update(key("n", "first"), 3, "v"))
	w := update(key("n", "second"), 2, "v")
	w.Expires = now.Add(anHour)
	f.revision(w)
	if expired, err = f.Expired(f.Context(), time.Time{}, now, 10); err != nil || len(expired) != 1 || expired[0].Name != "now" {
		f.Errorf("expired after renewal: %+v, %v", expired, err)
	}
	c := f.changes(6)
	if len(c) != 1 || !c[0].New.Expires.Equal(now.Add(anHour)) || !c[0].Old.Expires.Equal(now.Add(-time.Second)) {
		f.Errorf("expiry in history: %+v", c)
	}
}

func testNotes(f fixture) {
	set := func(name, old, value string, want bool) {
		f.Helper()
		if done, err := f.SetNote(f.Context(), name, old, value); err != nil || done != want {
			f.Errorf("%s from %q to %q: %v, %v, want %v", name, old, value, done, err, want)
		}
	}
	set("a/1", "", "x", true)
	set("a/1", "", "y", false)
	set("a/1", "y", "z", false)
	set("a/1", "x", "y", true)
	set("a/2", "none", "", false)
	set("a/2", "none", "x", false)
	set("a/2", "", "ü", true)
	set("b", "", "x", true)
	set("b", "x", "", true)
	set("b", "x", "", false)
	set("c", "", "x", true)
	notes, err := f.Notes(f.Context(), "a/")
	if want := map[string]string{"a/1": "y", "a/2": "ü"}; err != nil || !maps.Equal(notes, want) {
		f.Errorf("notes: %v, %v, want %v", notes, err, want)
	}
	if state, err := f.State(f.Context()); err != nil || state.Revision != 0 {
		f.Errorf("notes have taken a revision: %+v, %v", state, err)
	}
}

// testRetention tests that the history of each resource is kept for a time of its own, on an empty
// database. history returns the rows of HistoryQuery.
func testRetention(t *testing.T, driver sqlstore.Driver, history func() []string) {
	f := fixture{TB: t, Driver: driver}
	of := func(group, resource, name string) sqlstore.Key {
		return sqlstore.Key{Group: group, Resource: resource, Namespace: "n", Name: name}
	}
	deployment, lease, pod := of("apps", "deployments", "d"), of("coordination.k8s.io", "leases", "l"), of("", "pods", "p")
	f.revision(create(deployment, "1"))
	f.revision(create(lease, "2"))
	f.revision(create(pod, "3"))
	f.revision(update(deployment, 1, "4"))
	f.revision(update(lease, 2, "5"))
	f.revision(create(of("apps", "deployments", "gone"), "6"))
	f.revision(remove(of("apps", "deployments", "gone"), 6))
	f.revision(update(pod, 3, "8"))
	f.revision(update(deployment, 4, "9"))
	whole := history()

	// With a clock that is an hour ahead, all changes are older than an hour.
	ahead := &shifted{Driver: driver, by: anHour + time.Minute}
	retain(f, ahead, sqlstore.Options{Retention: anHour, RetentionFor: []sqlstore.ResourceRetention{
		{GroupResource: sqlstore.GroupResource{Group: "apps", Resource: "deployments"}, Age: 2 * anHour},
		{GroupResource: sqlstore.GroupResource{Resource: "leases"}, Age: anHour / 2},
	}}, func() bool { return f.state().Compacted == 8 })
	// The history still has all changes of deployments, and the changes of other resources that
	// wrote a current state.
	want := slices.DeleteFunc(slices.Clone(whole), func(row string) bool {
		return strings.HasPrefix(row, "2 ") || strings.HasPrefix(row, "3 ")
	})
	for i, row := range want {
		if strings.Contains(row, " leases/") || strings.Contains(row, " pods/") { // what they replaced is gone
			want[i] = row[:strings.LastIndex(row, " ")] + " -"
		}
	}
	if diff := cmp.Diff(want, history()); diff != "" {
		t.Errorf("history after the compaction (-want +got):\n%s", diff)
	}
	// The API reads what is left of each resource.
	deployments, pods := deployment.Of(), pod.Of()
	if changes, err := driver.Changes(t.Context(),
		sqlstore.ChangesQuery{After: 3, Of: &deployments, Limit: 10}); err != nil || len(changes) != 4 {
		t.Errorf("changes that are kept: %v, %v", changes, err)
	}
	if _, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: 3, Of: &pods, Limit: 10}); !errors.Is(err,
		sqlstore.ErrCompacted) {
		t.Errorf("changes after a compacted revision: %v", err)
	}
	if records, _, err := collect(t.Context(), driver,
		sqlstore.Query{Range: sqlstore.Range{Group: "apps", Resource: "deployments"}, At: 4}); err != nil ||
		len(records) != 1 {
		t.Errorf("list at a revision that is kept: %v, %v", records, err)
	}
	if changes := f.changes(8); len(changes) != 1 || changes[0].Old == nil {
		t.Errorf("changes that are not compacted: %+v", changes)
	}

	// The oldest changes go first, up to the first that is too young, in chunks.
	deletion := sqlstore.Deletion{Of: deployments, UpTo: 9, Before: time.Now().Add(-anHour), Limit: 2}
	for _, want := range []int{0, 2, 2, 1, 0} {
		if n, _, err := driver.DeleteHistory(t.Context(), deletion); n != want || err != nil {
			t.Errorf("deleted %d changes, %v; want %d", n, err, want)
		}
		deletion.Before = time.Now().Add(anHour)
	}
	left := []string{`5 update leases/l "5" -`, `8 update pods/p "8" -`, `9 update deployments/d "9" -`}
	if diff := cmp.Diff(left, history()); diff != "" {
		t.Errorf("history of which all was deleted (-want +got):\n%s", diff)
	}
}

// retain runs a store until a condition is true.
func retain(f fixture, driver sqlstore.Driver, options sqlstore.Options, condition func() bool) {
	f.Helper()
	f.Driver = driver
	options.CompactInterval = time.Millisecond
	_, stop := start(f, options)
	Eventually(f, "the retention", condition)
	stop()
}

// testRetentionByCount makes many changes of one resource: they shorten neither the history of
// another one nor that of one that is kept for longer.
func testRetentionByCount(f fixture) {
	quiet, kept := key("n", "quiet"), sqlstore.Key{Group: "apps", Resource: "deployments", Name: "kept"}
	quiet.Resource = "configmaps"
	f.revision(create(quiet, "1"))
	f.revision(create(kept, "2"))
	revision := f.revision(update(kept, 2, "3"))
	f.revision(update(kept, revision, "4"))
	busy := key("n", "busy")
	revision = f.revision(create(busy, "0"))
	for range 29 {
		revision = f.revision(update(busy, revision, "v"))
	}
	first := func(of sqlstore.Resource) int64 {
		histories, err := f.Histories(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		i := slices.IndexFunc(histories, func(h sqlstore.History) bool { return h.Resource == of })
		return histories[i].First
	}
	options := sqlstore.Options{
		RetentionChanges: 3,
		RetentionFor: []sqlstore.ResourceRetention{{GroupResource: sqlstore.GroupResource{Resource: "deployments"},
			Age: -1}},
	}
	retain(f, f.Driver, options, func() bool { return first(busy.Of()) == revision-2 })
	if records, _, err := collect(f.Context(), f.Driver,
		sqlstore.Query{Range: sqlstore.Range{Resource: "configmaps"}, At: 1}); err != nil || len(records) != 1 {
		f.Errorf("the quiet resource at revision 1: %v, %v", records, err)
	}
	if first(quiet.Of()) != 1 || first(kept.Of()) != 2 {
		f.Errorf("the history of the quiet resource begins at %d, of the kept one at %d; want 1 and 2", first(quiet.Of()),
			first(kept.Of()))
	}
	if state := f.state(); state.Compacted != revision-3 {
		f.Errorf("compacted up to %d, want %d", state.Compacted, revision-3)
	}
}

// testClockAhead has changes that were made while the clock was a year ahead: retention deletes them
// with the next change that has reached its age. A compaction does so too, and neither deletes
// them before.
func testClockAhead(t *testing.T, create func(*testing.T) database) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	for name, test := range map[string]struct {
		passed    time.Duration
		retention time.Duration
		keep      time.Duration
		want      int64
	}{
		"retention":          {8 * day, 7 * day, 0, 0},
		"retention too soon": {8 * day, 9 * day, 0, 6},
		"compact":            {2 * day, 7 * day, day, 0},
		"compact too soon":   {2 * day, 7 * day, 3 * day, 6},
	} {
		t.Run(name, func(t *testing.T) {
			db, model := create(t), NewModel()
			began := time.Now()
			for i, after := range []time.Duration{0, year, year + time.Minute, time.Minute, year, 2 * time.Minute} {
				model.Clock = func() time.Time { return began.Add(after) }
				f := fixture{TB: t, Driver: model}
				f.revision(sqlstore.Write{Op: sqlstore.Create, Key: key("n", string(rune('a'+i))), Value: []byte(`"1"`)})
			}
			if err := db.Load(t.Context(), model.rows().Snapshot()); err != nil {
				t.Fatal(err)
			}
			driver := db.Open(t)
			defer driver.Close()
			left := func() int64 {
				left, _, err := driver.CountChanges(t.Context(), key("n", "a").Of(), math.MaxInt64, 100)
				if err != nil {
					t.Fatal(err)
				}
				return left
			}
			clock := &shifted{Driver: driver, by: test.passed}
			f := fixture{TB: t, Driver: driver}
			retain(f, clock, sqlstore.Options{Retention: test.retention}, func() bool {
				if test.keep > 0 || test.want > 0 {
					return clock.count() > 20
				}
				return left() == 0
			})
			if test.keep > 0 {
				if _, err := sqlstore.New(clock, sqlstore.Options{}).CompactOlder(t.Context(),
					sqlstore.Compaction{Keep: test.keep}); err != nil {
					t.Fatal(err)
				}
			}
			if got := left(); got != test.want {
				t.Errorf("%d changes are left, want %d", got, test.want)
			}
		})
	}
}

// testRevisionAt compares the binary search with a look at all changes, before and after the history
// of a resource between the others is deleted.
func testRevisionAt(f fixture) {
	compare := func() {
		changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{Kept: true, Limit: 1000})
		if err != nil {
			f.Fatal(err)
		}
		var moments []time.Time
		for i := range changes {
			moments = append(moments, changes[i].Time.Add(-time.Microsecond), changes[i].Time,
				changes[i].Time.Add(time.Microsecond))
		}
		for _, moment := range append(moments, time.Time{}, time.Now().Add(anHour)) {
			want := int64(0)
			for i := range changes {
				if !changes[i].Time.After(moment) {
					want = changes[i].Revision
				}
			}
			if got, err := f.RevisionAt(f.Context(), moment); got != want || err != nil {
				f.Errorf("the revision at %v of %d changes is %d, %v; want %d", moment, len(changes), got, err, want)
			}
		}
	}
	compare() // nothing
	between := sqlstore.Key{Resource: "configmaps", Namespace: "n"}
	last := int64(0)
	for i := range 40 {
		f.revision(create(key("n", "of"+string(rune('a'+i))), "v"))
		if i > 4 && i < 30 { // several in a row, of which the middle is deleted later
			between.Name = "of" + string(rune('a'+i))
			last = f.revision(create(between, "v"))
		}
		if i%10 == 0 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	compare()
	if n, _, err := f.DeleteHistory(f.Context(),
		sqlstore.Deletion{Of: between.Of(), UpTo: last - 1, Limit: 1000}); n != 24 || err != nil {
		f.Fatalf("deleted %d changes, %v", n, err)
	}
	compare()
}

// testChangesOf reads the changes of a quiet resource among those of a busy one.
func testChangesOf(f fixture) {
	quiet := sqlstore.Key{Group: "apps", Resource: "deployments", Name: "quiet"}
	f.revision(create(quiet, "1"))
	for i := range 20 {
		f.revision(create(key("n", string(rune('a'+i))), "v"))
	}
	last := f.revision(update(quiet, 1, "2"))
	of, none := quiet.Of(), sqlstore.Resource{Resource: "none"}
	for _, test := range []struct {
		q    sqlstore.ChangesQuery
		want []int64
	}{
		{sqlstore.ChangesQuery{Of: &of, Limit: 10}, []int64{1, last}},
		{sqlstore.ChangesQuery{Of: &of, Limit: 1}, []int64{1}},
		{sqlstore.ChangesQuery{Of: &of, Limit: 10, Size: 1}, []int64{1}},
		{sqlstore.ChangesQuery{Of: &of, After: 1, Limit: 10}, []int64{last}},
		{sqlstore.ChangesQuery{Of: &of, After: last, Limit: 10}, nil},
		{sqlstore.ChangesQuery{Of: &none, Limit: 10}, nil},
		{sqlstore.ChangesQuery{Of: &of, Before: math.MaxInt64, Limit: 10}, []int64{last, 1}},
		{sqlstore.ChangesQuery{Of: &of, Before: last, Limit: 10, KeysOnly: true}, []int64{1}},
		{sqlstore.ChangesQuery{Of: &of, Before: last, After: 1, Limit: 10}, nil},
		{sqlstore.ChangesQuery{Before: last, Limit: 2}, []int64{last - 1, last - 2}},
		{sqlstore.ChangesQuery{Before: math.MaxInt64, Limit: 10, Size: 1}, []int64{last}},
		{sqlstore.ChangesQuery{Before: 1, Limit: 10}, nil},
	} {
		changes, err := f.Changes(context.Background(), test.q)
		var got []int64
		for _, c := range changes {
			got = append(got, c.Revision)
		}
		if err != nil || !slices.Equal(got, test.want) {
			f.Errorf("%+v: %v, %v; want %v", test.q, got, err, test.want)
		}
	}
}
