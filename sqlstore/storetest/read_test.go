package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"byre/sqlstore"
)

func testChanges(f fixture) {
	k := key("n", "a")
	f.revision(create(k, "1"))
	f.revision(create(key("n", "b"), "1"))
	f.revision(update(k, 1, "2"))
	f.revision(remove(k, 3))
	f.revision(create(k, "3"))
	changes := f.changes(0)
	if len(changes) != 5 {
		f.Fatalf("%d changes, want 5", len(changes))
	}
	for i, c := range changes {
		if c.Revision != int64(i+1) || c.Time.IsZero() || time.Since(c.Time).Abs() > anHour {
			f.Errorf("change %d: revision %d, time %v", i, c.Revision, c.Time)
		}
		changes[i].Time = time.Time{}
	}
	first := sqlstore.Record{Key: k, UID: "uid-a", Created: 1, Revision: 1, Encoding: "v1", Value: []byte(`"1"`)}
	second := sqlstore.Record{Key: k, UID: "uid-a", Created: 1, Revision: 3, Encoding: "v2", Value: []byte(`"2"`)}
	want := []sqlstore.Change{
		{Op: sqlstore.Update, Revision: 3,
			Author: sqlstore.Author{User: "bob", RealUser: "eve", Verb: "patch", Subresource: "status", Manager: "kubectl"},
			New:    second, Old: &first, OldBytes: 3},
		{
			Op: sqlstore.Delete, Revision: 4, Author: sqlstore.Author{User: "carol", Verb: "delete"},
			New: sqlstore.Record{Key: k, UID: "uid-a", Created: 1, Revision: 4}, Old: &second, OldBytes: 3,
		},
		{
			Op: sqlstore.Create, Revision: 5, Author: sqlstore.Author{User: "alice", Verb: "create", AuditID: "a-1"},
			New: sqlstore.Record{Key: k, UID: "uid-a", Created: 5, Revision: 5, Encoding: "v1", Value: []byte(`"3"`)},
		},
	}
	if diff := cmp.Diff(want, changes[2:]); diff != "" {
		f.Errorf("changes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(first, changes[0].New); diff != "" {
		f.Errorf("the first state, replaced since (-want +got):\n%s", diff)
	}
	some, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: 1, Limit: 2})
	if err != nil || len(some) != 2 || some[0].Revision != 2 || some[1].Revision != 3 {
		f.Errorf("two changes after 1: %v, %v", some, err)
	}
	if at := f.changes(5); len(at) != 0 {
		f.Errorf("changes after the last: %v", at)
	}
}

// Changes ends with the change with which the size is reached. The replaced and the written value
// of a change count. It returns at least one change.
func testChangesBySize(f fixture) {
	value := func(size int) string { return strings.Repeat("x", size-2) } // without its quotation marks
	f.revision(create(key("n", "a"), value(100)))                         // 1: 100
	f.revision(update(key("n", "a"), 1, value(5000)))                     // 2: 5,100
	f.revision(create(key("n", "b"), value(100)))                         // 3: 100
	f.revision(remove(key("n", "a"), 2))                                  // 4: 5,000
	f.revision(update(key("n", "b"), 3, value(100)))                      // 5: 200
	for _, test := range []struct {
		after       int64
		limit, size int
		last        int64
	}{
		{0, 10, 0, 5}, {0, 10, 1 << 20, 5}, {0, 3, 1 << 20, 3},
		{0, 10, 1, 1}, {0, 10, 100, 1}, {0, 10, 101, 2}, {0, 10, 5200, 2}, {0, 10, 5201, 3}, {0, 10, 5301, 4},
		{1, 10, 1, 2}, {2, 10, 101, 4}, {3, 10, 5001, 5}, {4, 10, 1, 5},
	} {
		changes, err := f.Changes(f.Context(), sqlstore.ChangesQuery{After: test.after, Limit: test.limit, Size: test.size})
		if err != nil {
			f.Fatal(err)
		}
		for i, c := range changes {
			if c.Revision != test.after+int64(i)+1 {
				f.Errorf("%+v: revision %d is number %d", test, c.Revision, i)
			}
		}
		if last := test.after + int64(len(changes)); last != test.last {
			f.Errorf("%+v: ends with revision %d", test, last)
		}
	}
}

func testListAt(f fixture) {
	f.revision(create(key("n", "a"), "a1"))    // 1
	f.revision(create(key("n", "b"), "b2"))    // 2
	f.revision(update(key("n", "a"), 1, "a3")) // 3
	f.revision(remove(key("n", "b"), 2))       // 4
	f.revision(create(key("n", "b"), "b5"))    // 5
	f.revision(remove(key("n", "a"), 3))       // 6
	for at, want := range []string{1: `a1`, 2: `a1 b2`, 3: `a3 b2`, 4: `a3`, 5: `a3 b5`, 6: `b5`} {
		if at == 0 {
			continue
		}
		records, listed := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, At: int64(at)})
		var got []byte
		for _, r := range records {
			got = append(append(got, ' '), bytes.Trim(r.Value, `"`)...)
		}
		if string(bytes.TrimSpace(got)) != want || listed.Revision != int64(at) {
			f.Errorf("at %d: %s (%+v), want %s", at, got, listed, want)
		}
	}
}

// Pages have the same boundaries at every revision and add up to the whole.
func testPages(f fixture) {
	var revision int64
	for i := range 23 {
		revision = f.revision(create(key(fmt.Sprintf("n%d", i%3), fmt.Sprintf("p%02d", i)), "old"))
	}
	then, _ := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}})
	for i := 0; i < 23; i += 2 {
		k := key(fmt.Sprintf("n%d", i%3), fmt.Sprintf("p%02d", i))
		if i%4 == 0 {
			f.revision(remove(k, int64(i+1)))
		} else {
			f.revision(update(k, int64(i+1), "new"))
		}
	}
	for _, at := range []int64{revision, 0} {
		whole := then
		if at == 0 {
			whole, _ = f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}})
		}
		for limit := 1; limit <= len(whole)+1; limit++ {
			q := sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, At: at, Limit: limit, Count: limit%2 == 0}
			var all []sqlstore.Record
			for {
				page, listed := f.list(q)
				all = append(all, page...)
				left, counted := len(whole)-len(all), int64(0)
				if q.Count {
					counted = int64(left)
				}
				if listed.Remaining != counted || listed.More != (left > 0) {
					f.Fatalf("limit %d: %+v with %d left", limit, listed, left)
				}
				if !listed.More {
					break
				}
				last := page[len(page)-1]
				q.After = &sqlstore.Position{Namespace: last.Namespace, Name: last.Name}
			}
			if diff := cmp.Diff(whole, all); diff != "" {
				f.Fatalf("limit %d at %d: pages differ from the whole (-want +got):\n%s", limit, at, diff)
			}
		}
	}
}

func testRanges(f fixture) {
	for _, k := range []sqlstore.Key{
		{Resource: "nodes", Name: "a"}, {Resource: "nodes", Name: "b"},
		key("n1", "a"), key("n1", "b"), key("n1", "c"), key("n2", "a"), key("n3", "b"),
		{Group: "apps", Resource: "pods", Namespace: "n1", Name: "a"},
		{Resource: "podset", Namespace: "n1", Name: "a"},
	} {
		f.revision(create(k, "v"))
	}
	last := f.state().Revision
	// After an update of every object, the lists at last read the undo log.
	for i := range last {
		r := f.changes(i)[0].New
		f.revision(update(r.Key, r.Revision, "w"))
	}
	pods := sqlstore.Range{Resource: "pods"}
	for _, c := range []struct {
		edit func(*sqlstore.Range)
		want string
	}{
		{func(*sqlstore.Range) {}, "n1/a n1/b n1/c n2/a n3/b"},
		{func(r *sqlstore.Range) { r.Namespace = "n1" }, "n1/a n1/b n1/c"},
		{func(r *sqlstore.Range) { r.Namespace = "n9" }, ""},
		{func(r *sqlstore.Range) { r.Name = "a" }, "n1/a n2/a"},
		{func(r *sqlstore.Range) { r.Namespace, r.Name = "n1", "b" }, "n1/b"},
		{func(r *sqlstore.Range) { r.Namespace, r.Name = "n2", "b" }, ""},
		{func(r *sqlstore.Range) { r.After = &sqlstore.Position{Namespace: "n1", Name: "b"} }, "n1/c n2/a n3/b"},
		{func(r *sqlstore.Range) { r.After = &sqlstore.Position{Namespace: "n1"} }, "n1/a n1/b n1/c n2/a n3/b"},
		{func(r *sqlstore.Range) { r.After = &sqlstore.Position{Namespace: "n11"} }, "n2/a n3/b"},
		{func(r *sqlstore.Range) {
			r.Namespace, r.After = "n1", &sqlstore.Position{Namespace: "n1", Name: "a"}
		}, "n1/b n1/c"},
		{func(r *sqlstore.Range) {
			r.Namespace, r.After = "n1", &sqlstore.Position{Namespace: "n0", Name: "z"}
		}, "n1/a n1/b n1/c"},
		{func(r *sqlstore.Range) { r.Namespace, r.After = "n1", &sqlstore.Position{Namespace: "n2", Name: "a"} }, ""},
		{func(r *sqlstore.Range) {
			r.Namespace, r.Name, r.After = "n1", "b", &sqlstore.Position{Namespace: "n1", Name: "b"}
		}, ""},
		{func(r *sqlstore.Range) { r.Resource = "nodes" }, "/a /b"},
		{func(r *sqlstore.Range) { r.Resource, r.After = "nodes", &sqlstore.Position{Name: "a"} }, "/b"},
		{func(r *sqlstore.Range) { r.Group = "apps" }, "n1/a"},
		{func(r *sqlstore.Range) { r.Group = "batch" }, ""},
	} {
		r := pods
		c.edit(&r)
		for _, at := range []int64{0, last} {
			for _, keysOnly := range []bool{false, true} {
				records, _ := f.list(sqlstore.Query{Range: r, At: at, KeysOnly: keysOnly})
				var got []byte
				for _, rec := range records {
					got = fmt.Appendf(got, " %s/%s", rec.Namespace, rec.Name)
					if (rec.Value == nil) != keysOnly {
						f.Errorf("%+v: keys only %v, value %q", r, keysOnly, rec.Value)
					}
				}
				if string(bytes.TrimSpace(got)) != c.want {
					f.Errorf("%+v after %+v at %d: %s, want %s", r, r.After, at, got, c.want)
				}
			}
		}
	}
}

// A List whose yield fails returns that error, and the driver works afterwards.
func testYieldError(f fixture) {
	for i := range 50 {
		f.revision(create(key("n", fmt.Sprint(i)), "v"))
	}
	enough := errors.New("enough")
	for range 20 {
		_, err := f.List(f.Context(), sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(sqlstore.Record) error {
			return enough
		})
		if !errors.Is(err, enough) {
			f.Fatalf("list: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(f.Context())
	_, err := f.List(ctx, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}, func(sqlstore.Record) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		f.Errorf("cancelled list: %v", err)
	}
	if records, _ := f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}}); len(records) != 50 {
		f.Errorf("list afterwards: %d records", len(records))
	}
}

func testLargeValue(f fixture) {
	k := key("n", "large")
	value := append(append([]byte(`"`), bytes.Repeat([]byte("käse "), 700_000)...), '"')
	w := create(k, "")
	w.Value = value
	f.revision(w)
	f.revision(update(k, 1, "small"))
	if c := f.changes(1); !bytes.Equal(c[0].Old.Value, value) {
		f.Errorf("a value of %d bytes came back with %d", len(value), len(c[0].Old.Value))
	}
	f.compact(2)
}

// A List during writes reads one snapshot: it has as many objects as its revision says.
func testReadersDuring(f fixture) {
	ctx, cancel := context.WithCancel(f.Context())
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for ctx.Err() == nil {
				records, listed, err := collect(ctx, f.Driver, sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}})
				if err != nil && ctx.Err() == nil {
					f.Errorf("list: %v", err)
				}
				if err == nil && int64(len(records)) != listed.Revision {
					f.Errorf("%d records at revision %d", len(records), listed.Revision)
				}
				changes, err := f.Changes(ctx, sqlstore.ChangesQuery{After: 0, Limit: 1000})
				if err == nil && len(changes) > 0 && changes[len(changes)-1].Revision != int64(len(changes)) {
					f.Errorf("%d changes up to %d", len(changes), changes[len(changes)-1].Revision)
				}
			}
		})
	}
	for i := range 60 {
		f.commit(create(key("n", fmt.Sprintf("%d-a", i)), "v"), create(key("n", fmt.Sprintf("%d-b", i)), "v"))
	}
	cancel()
	readers.Wait()
}

// Usage counts the objects of a built-in and of a custom resource separately. Each outcome and each
// change has the length of the value that it replaced, with which the feed updates its counts.
func testUsage(f fixture) {
	custom := sqlstore.Key{Resource: "pods", Owner: sqlstore.Custom, Name: "a"}
	grouped := sqlstore.Key{Group: "apps", Resource: "deployments", Namespace: "n", Name: "a"}
	long := strings.Repeat("ä\\n", 3000)
	f.commit(create(key("n", "a"), "12"), create(key("n", "b"), long), create(custom, "1234"), create(grouped, "123456"))
	outcomes := f.commit(update(key("n", "b"), 2, "1"), remove(grouped, 4), update(key("n", "a"), 9, "conflict"))
	if got, want := outcomes[0].OldBytes, int64(len(quoted(long))); got != want {
		f.Errorf("the outcome says that %d bytes were replaced, want %d", got, want)
	}
	for i, want := range []int64{0, 0, 0, 0, int64(len(quoted(long))), 8} {
		if got := f.changes(0)[i].OldBytes; got != want {
			f.Errorf("change %d says that %d bytes were replaced, want %d", i+1, got, want)
		}
	}
	usage, err := f.Usage(f.Context())
	if err != nil || usage.Revision != 6 {
		f.Fatalf("usage at %d, %v", usage.Revision, err)
	}
	slices.SortFunc(usage.Resources, func(a, b sqlstore.ResourceUsage) int { return int(a.Owner) - int(b.Owner) })
	want := []sqlstore.ResourceUsage{
		{Resource: "pods", Objects: 2, Bytes: 4 + 3},
		{Resource: "pods", Owner: sqlstore.Custom, Objects: 1, Bytes: 6},
	}
	if diff := cmp.Diff(want, usage.Resources); diff != "" {
		f.Errorf("usage (-want +got):\n%s", diff)
	}
	if size, err := f.Size(f.Context()); err != nil || size < 8192 {
		f.Errorf("size on disk: %d, %v", size, err)
	}
}

// testReadIndex: State is never older than what a read has returned, even if that read has seen a
// commit before Commit returned.
func testReadIndex(f fixture) {
	k := key("n", "a")
	last := f.revision(create(k, "0"))
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	all := sqlstore.Query{Range: sqlstore.Range{Resource: k.Resource}}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				_, read, err := f.Get(f.Context(), k)
				if err == nil {
					var listed sqlstore.ListResult
					listed, err = f.List(f.Context(), all, func(sqlstore.Record) error { return nil })
					read = max(read, listed.Revision)
				}
				state, stateErr := f.State(f.Context())
				if err != nil || stateErr != nil || state.Revision < read {
					f.Errorf("state %d after a read of %d: %v, %v", state.Revision, read, err, stateErr)
					return
				}
			}
		})
	}
	for range 200 {
		last = f.revision(update(k, last, "1"))
	}
	cancel()
	readers.Wait()
}
