package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// newWrittenSource makes a store with n changes of Pods, and as many of another resource.
func newWrittenSource(t testing.TB, n int, value string) *source {
	t.Helper()
	s := &source{Model: storetest.NewModel()}
	var batch []sqlstore.Write
	revisions := map[sqlstore.Key]int64{}
	for i := range 2 * n {
		key := pod("a", fmt.Sprint(i/2%100))
		if i%2 == 1 {
			key.Resource = "others"
		}
		w := sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(value), Replaces: revisions[key]}
		if w.Replaces > 0 {
			w.Op = sqlstore.Update
		}
		revisions[key] = int64(i + 1)
		if batch = append(batch, w); len(batch) == 100 || i == 2*n-1 {
			if _, err := s.Commit(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			batch = nil
		}
	}
	return s
}

// resume subscribes to Pods after revisions that are spread over the whole history, and reads
// all changes from there.
func resume(t testing.TB, f *Feed, watchers int, last int64) {
	t.Helper()
	const workers = 64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := w; i < watchers; i += workers {
				after := int64(i*37) % last
				if err := readOn(t, f, after, last); err != nil {
					t.Errorf("after %d: %v", after, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// readOn reads the changes of Pods after a revision up to the last one. Pods have the odd
// revisions.
func readOn(t testing.TB, f *Feed, after, last int64) error {
	s, err := f.Subscribe(t.Context(), Interest{Resource: pods}, after)
	if err != nil {
		return err
	}
	defer s.Close()
	next := after + 1 + after%2
	for upTo := after; upTo < last; {
		var events []Event
		if events, upTo, err = s.Poll(t.Context()); err != nil {
			return err
		}
		for _, ev := range events {
			if ev.Revision != next {
				return fmt.Errorf("revision %d comes where %d should", ev.Revision, next)
			}
			next += 2
		}
	}
	if next <= last {
		return fmt.Errorf("ends before revision %d of %d", next, last)
	}
	return nil
}

// Watchers that resume after a restart share what the feed reads of the history of their resource,
// and read no change of another one.
func TestChangePages_IsSharedByResumingWatchers(t *testing.T) {
	t.Parallel()
	const n, watchers = 500, 10_000
	f := startOver(t, newWrittenSource(t, n, "x"), Options{RingEvents: 4})
	resume(t, f.Feed, watchers, 2*n)
	if rows := f.source.rows.Load(); rows > 2*n {
		t.Errorf("%d rows are read for %d changes of Pods", rows, n)
	}
}

// The watch of a resource that seldom changes reads its changes, however many others there are.
func TestChangePages_AQuietResourceReadsItsChanges(t *testing.T) {
	t.Parallel()
	const others = 100_000
	s := &source{Model: storetest.NewModel()}
	commit := func(writes ...sqlstore.Write) {
		if _, err := s.Commit(t.Context(), writes); err != nil {
			t.Fatal(err)
		}
	}
	commit(sqlstore.Write{Op: sqlstore.Create, Key: pod("a", "x"), Value: []byte("1")})
	for i := range others / 1000 {
		batch := make([]sqlstore.Write, 1000)
		for j := range batch {
			batch[j] = sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "others", Name: fmt.Sprint(i, "-", j)},
				Value: []byte("1")}
		}
		commit(batch...)
	}
	commit(sqlstore.Write{Op: sqlstore.Update, Key: pod("a", "x"), Replaces: 1, Value: []byte("2")})
	f := startOver(t, s, Options{})
	for after := int64(1); after < others; after += others / 10 {
		if events := f.next(f.subscribe(Interest{}, after), 1); events[0].Revision != others+2 {
			t.Fatalf("after %d comes %d", after, events[0].Revision)
		}
	}
	if reads, rows := s.reads.Load(), s.rows.Load(); reads > 1 || rows > 2 {
		t.Errorf("%d reads of %d changes", reads, rows)
	}
}

// The feed reads only a few large changes at a time, and drops their pages when others are read.
func TestChangePages_PagesAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	const n, size = 40, 1 << 20
	s := newWrittenSource(t, n, strings.Repeat("x", size))
	f := startOver(t, s, Options{RingBytes: 1})
	most := 0
	s.answer(func(s *source) {
		s.changes = func(changes []sqlstore.Change) ([]sqlstore.Change, error) {
			total := 0
			for _, c := range changes {
				total += c.Size()
			}
			most = max(most, total)
			return changes, nil
		}
	})
	resume(t, f.Feed, 100, 2*n)
	if most > pageBytes+2*size {
		t.Errorf("%d bytes are read at a time", most)
	}
	f.changePages.mu.Lock()
	defer f.changePages.mu.Unlock()
	if f.changePages.bytes > changePageBytes || f.changePages.bytes == 0 {
		t.Errorf("%d bytes of history are kept", f.changePages.bytes)
	}
	total := 0
	for _, p := range f.changePages.pages[pods] {
		total += p.bytes
	}
	if total != f.changePages.bytes {
		t.Errorf("%d bytes of history are kept, counted %d", total, f.changePages.bytes)
	}
}

// Watchers that resume right after a compaction share pages too, although the first page
// begins in its middle. A revision before the compaction is an error.
func TestChangePages_ResumesNextToACompaction(t *testing.T) {
	t.Parallel()
	const n, compacted = 300, 100
	s := newWrittenSource(t, n, "x")
	f := startOver(t, s, Options{RingEvents: 4})
	f.snapshot()
	storetest.Compact(t, s, compacted)
	f.changePages.forget()
	rows := s.rows.Load()
	for after := int64(compacted); after < compacted+100; after++ {
		if err := readOn(t, f.Feed, after, 2*n); err != nil {
			t.Fatalf("after %d: %v", after, err)
		}
	}
	if read := s.rows.Load() - rows; read > 2*n {
		t.Errorf("%d rows are read for %d changes", read, 2*n-compacted)
	}
	if err := readOn(t, f.Feed, compacted-1, 2*n); !errors.Is(err, ErrCompacted) {
		t.Errorf("before the end of compaction: %v", err)
	}
}

// A compaction of other resources does not shorten the history of a resource, whose watchers resume
// from the store.
func TestChangePages_ResumesWhereOthersAreCompacted(t *testing.T) {
	t.Parallel()
	const n = 300
	s := newWrittenSource(t, n, "x")
	if _, _, err := s.DeleteHistory(t.Context(),
		sqlstore.Deletion{Of: sqlstore.Resource{Resource: "others"}, UpTo: 2 * n, Limit: 1000}); err != nil {
		t.Fatal(err)
	}
	if state, err := s.State(t.Context()); err != nil || state.Compacted != 2*n {
		t.Fatalf("the store is compacted up to %d, %v", state.Compacted, err)
	}
	f := startOver(t, s, Options{RingEvents: 4})
	for after := int64(0); after < 2*n; after += 37 {
		if err := readOn(t, f.Feed, after, 2*n); err != nil {
			t.Fatalf("after %d: %v", after, err)
		}
	}
	if _, err := f.changePages.load(t.Context(), sqlstore.Resource{Resource: "others"}, 2*n-1); !errors.Is(err,
		ErrCompacted) {
		t.Errorf("a page of the resource that is compacted: %v", err)
	}
}

// A reset drops the pages that were read of the replaced history.
func TestChangePages_IsForgottenByAReset(t *testing.T) {
	t.Parallel()
	f := startOver(t, newWrittenSource(t, 300, "x"), Options{Interval: never, RingEvents: 4})
	if err := readOn(t, f.Feed, 0, 600); err != nil {
		t.Fatal(err)
	}
	if err := f.reset(t.Context(), resetRestored); err != nil {
		t.Fatal(err)
	}
	f.changePages.mu.Lock()
	defer f.changePages.mu.Unlock()
	if len(f.changePages.pages) > 0 || f.changePages.bytes > 0 {
		t.Errorf("%d bytes of history are kept", f.changePages.bytes)
	}
}

// A subscription that finds a hole in the history ends as if the history were compacted, so that
// its client reads the current state. One that does not need the missing change goes on.
func TestChangePages_AHoleIsCompacted(t *testing.T) {
	t.Parallel()
	const n, missing = 300, 101
	s := newWrittenSource(t, n, "x")
	f := startOver(t, s, Options{RingEvents: 4})
	f.snapshot()
	s.answer(func(s *source) {
		s.changes = func(changes []sqlstore.Change) ([]sqlstore.Change, error) {
			return slices.DeleteFunc(changes, func(c sqlstore.Change) bool { return c.Revision == missing }), nil
		}
	})
	f.changePages.forget()
	if err := readOn(t, f.Feed, missing-50, 2*n); !errors.Is(err, ErrCompacted) {
		t.Errorf("before the hole: %v", err)
	}
	if err := readOn(t, f.Feed, missing+1, 2*n); err != nil {
		t.Errorf("after the hole: %v", err)
	}
}

// A missing change is noticed where a later one of the same object in the page does not follow from
// the change before.
func TestChangePages_FindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	ops := []sqlstore.Op{sqlstore.Create, sqlstore.Update, sqlstore.Delete, sqlstore.Create, sqlstore.Update,
		sqlstore.Update}
	for missing, isFound := range map[int64]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: false} {
		s := &source{Model: storetest.NewModel()}
		for i, op := range ops {
			w := sqlstore.Write{Op: op, Key: pod("a", "a"), Value: []byte("x"), Replaces: int64(i)}
			if op == sqlstore.Create {
				w.Replaces = 0
			}
			if o, err := s.Commit(t.Context(), []sqlstore.Write{w}); err != nil || o[0].Err != nil {
				t.Fatal(o, err)
			}
		}
		changes, err := s.Changes(t.Context(), sqlstore.ChangesQuery{Limit: len(ops)})
		if err != nil {
			t.Fatal(err)
		}
		key := pageKey{resource: pods}
		if _, err := newPage(key, int64(len(ops)), changes); err != nil {
			t.Errorf("all are there: %v", err)
		}
		changes = slices.DeleteFunc(changes, func(c sqlstore.Change) bool { return c.Revision == missing })
		if _, err := newPage(key, int64(len(ops)), changes); errors.Is(err, errHole) != isFound {
			t.Errorf("%d is missing: %v", missing, err)
		}
	}
}

// BenchmarkResume measures 10,000 watchers that resume after a restart, each at another
// revision of the log.
func BenchmarkResume(b *testing.B) {
	const n, watchers = 2000, 10_000
	s := newWrittenSource(b, n, strings.Repeat("x", 1000))
	for b.Loop() {
		s.rows.Store(0)
		f := New(s, Options{RingEvents: 4})
		ctx, stop := context.WithCancel(b.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		resume(b, f, watchers, 2*n)
		stop()
		running.Wait()
	}
	b.ReportMetric(float64(s.rows.Load())/n, "reads/change")
}
