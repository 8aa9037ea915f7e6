package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

func TestEncodedWatch_EqualsDecoded(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b)
		start := f.feed.Revision()
		selected := f.watch(t, all(from(start), labelled("x=1")))
		every := f.watch(t, all(from(start)))

		a := f.create(t, "ns", "a", "x=1")
		f.create(t, "ns", "b", "x=2")
		b1 := f.label(t, "ns", "b", "x", "1")
		a3 := f.label(t, "ns", "a", "x", "3")
		b2 := f.delete(t, "ns", "b")

		left := a.DeepCopy() // the last state that matched, at the revision of the change
		left.ResourceVersion = a3.ResourceVersion
		for i, ev := range events(t, selected, 4) {
			want := []struct {
				typ apiwatch.EventType
				obj runtime.Object
			}{{apiwatch.Added, a}, {apiwatch.Added, b1}, {apiwatch.Deleted, left}, {apiwatch.Deleted, b2}}[i]
			if got := string(ev.Object.AppendJSON(nil, true)); ev.Type != want.typ || got != f.wire(t, want.obj) {
				t.Errorf("event %d: %s %s\nwant %s %s", i, ev.Type, got, want.typ, f.wire(t, want.obj))
			}
		}
		types := ""
		for _, ev := range events(t, every, 5) {
			types += string(ev.Type) + " "
		}
		if types != "ADDED ADDED MODIFIED MODIFIED DELETED " {
			t.Errorf("all events are %s", types)
		}
	})
}

func TestEncodedWatch_SendsInitialEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	for i := range initialBatch + 5 {
		f.create(t, "ns", fmt.Sprintf("pod-%03d", i), "")
	}
	last := fmt.Sprint(f.feed.Revision())

	got := events(t, f.watch(t, all(withInitialEvents, withBookmarks)), initialBatch+6)
	for i, ev := range got[:initialBatch+5] {
		if raw := string(ev.Object.AppendJSON(nil, true)); ev.Type != apiwatch.Added ||
			!strings.Contains(raw, fmt.Sprintf("pod-%03d", i)) {
			t.Fatalf("event %d: %s %s", i, ev.Type, raw)
		}
	}
	end := got[initialBatch+5]
	var bookmark example.Pod
	if err := runtime.DecodeInto(f.codec, end.Object.AppendJSON(nil, true), &bookmark); err != nil {
		t.Fatal(err)
	}
	if end.Type != apiwatch.Bookmark || bookmark.ResourceVersion != last ||
		bookmark.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("ends with %s %+v, want a bookmark at %s", end.Type, bookmark.ObjectMeta, last)
	}
	// A watch that did not ask for bookmarks gets none and waits for changes.
	w := f.watch(t, all(withInitialEvents))
	events(t, w, initialBatch+5)
	f.create(t, "ns", "new", "")
	if ev := events(t, w, 1)[0]; ev.Type != apiwatch.Added {
		t.Errorf("got %s after the initial events", ev.Type)
	}
}

// following is a driver that counts the changes that are read of it, and their bytes.
type following struct {
	sqlstore.Driver
	changes, bytes atomic.Int64
}

func (d *following) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	changes, err := d.Driver.Changes(ctx, q)
	for _, c := range changes {
		d.changes.Add(1)
		d.bytes.Add(int64(c.Size()))
	}
	return changes, err
}

// A watch that resumes reads the changes of its resource, and not the 100,000 that were made of
// another one since.
func TestWatch_ResumesPastTheChangesOfOthers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes 100,000 changes")
	}
	const others = 100_000
	onEach(t, func(t *testing.T, b backend) {
		driver := &following{}
		fill := func(t testing.TB) sqlstore.Driver {
			driver.Driver = b.open(t)
			for i := range others / 1000 {
				batch := make([]sqlstore.Write, 1000)
				for j := range batch {
					batch[j] = sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "others", Name: fmt.Sprint(i, "-", j)},
						Value: []byte(`{}`)}
				}
				if _, err := driver.Commit(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
			}
			return driver
		}
		f := newFixture(t, backend{b.name, fill, b.soleWriter})
		f.create(t, "ns", "a", "")
		f.listed(t, "/pods", all())
		driver.changes.Store(0)
		driver.bytes.Store(0)
		for after := int64(1); after < others; after += others / 5 {
			if ev := events(t, f.watch(t, all(from(after))), 1)[0]; ev.Type != apiwatch.Added {
				t.Errorf("after %d comes %s", after, ev.Type)
			}
		}
		if n, size := driver.changes.Load(), driver.bytes.Load(); n > 5 || size > 10_000 {
			t.Errorf("%d changes of %d bytes are read", n, size)
		}
	})
}

// seats counts as the signal at which priority and fairness releases a watch's seats.
type seats struct{ free bool }

func (s *seats) Signal() { s.free = true }
func (s *seats) Wait()   {}

// A watch with initial events holds its seats until the last of them is queued.
func TestWatch_InitialEventsKeepTheirSeats(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	for i := range 2*initialBatch + 5 {
		f.create(t, "ns", fmt.Sprintf("pod-%03d", i), "")
	}
	begin := func(options storage.ListOptions) (EncodedWatch, *seats) {
		s := &seats{}
		w, err := f.WatchEncoded(utilflowcontrol.WithInitializationSignal(t.Context(), s), "/pods", options, f.Stored())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w, s
	}
	w, s := begin(all(withInitialEvents, withBookmarks))
	for n := 0; n < 2*initialBatch+6; {
		if s.free {
			t.Fatalf("the seats are free after %d events", n)
		}
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += len(events)
	}
	if !s.free {
		t.Error("the seats are not free after the initial events")
	}
	if _, s := begin(all(from(f.feed.Revision()))); !s.free {
		t.Error("a watch without initial events keeps its seats")
	}
}

// createLarge creates a Pod with an annotation of so many bytes.
func (f *fixture) createLarge(t *testing.T, name string, size int) {
	t.Helper()
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		Annotations: map[string]string{"a": strings.Repeat("x", size)}}}
	if err := f.Create(t.Context(), "/pods/ns/"+name, pod, &example.Pod{}, 0); err != nil {
		t.Fatal(err)
	}
}

// TestWatch_HoldsFewBytes: what Next returns stays in memory while the client does not read it.
func TestWatch_HoldsFewBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	first := f.feed.Revision()
	const size, pods = 200 << 10, 20
	for i := range pods {
		f.createLarge(t, fmt.Sprintf("pod-%02d", i), size)
	}
	for name, options := range map[string]storage.ListOptions{"initial events": all(withInitialEvents, withBookmarks),
		"events": all(from(first))} {
		w, err := f.WatchEncoded(t.Context(), "/pods", options, f.Stored())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for seen := 0; seen < pods; {
			got, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held := 0
			for _, ev := range got {
				held += len(ev.Object.Body())
				if want := fmt.Sprintf(`"name":"pod-%02d"`, seen); !bytes.Contains(ev.Object.Body(), []byte(want)) {
					t.Fatalf("%s: event %d is not of %s", name, seen, want)
				}
				if seen++; seen == pods {
					break
				}
			}
			if held > aheadBytes+2*size {
				t.Errorf("%s: %d events of %d bytes", name, len(got), held)
			}
		}
	}
}

// TestWatch_InitialEventsLeaveWhatIsInMemory: a client that reads more than the budget of representations evicts little
// of what others read.
func TestWatch_InitialEventsLeaveWhatIsInMemory(t *testing.T) {
	t.Parallel()
	const budget, size, pods, used = 1 << 20, 20 << 10, 200, 10
	f := newFixtureWith(t, backends()[0], watch.Options{Interval: 50 * time.Millisecond, RepresentationBytes: budget})
	made := 0
	format := encoding.JSON("of the test", func(_ context.Context, obj runtime.Object) ([]byte, error) {
		made++
		return runtime.Encode(f.codec, obj)
	})
	for i := range pods {
		f.createLarge(t, fmt.Sprintf("pod-%03d", i), size)
	}
	read := func() int {
		before := made
		for i := range used {
			if _, err := f.GetEncoded(t.Context(), fmt.Sprintf("/pods/ns/pod-%03d", i), storage.GetOptions{},
				format); err != nil {
				t.Fatal(err)
			}
		}
		return made - before
	}
	f.listed(t, "/pods", all())
	read()
	if again := read(); again > 0 {
		t.Fatalf("%d of %d representations are made again although nobody else reads", again, used)
	}
	w, err := f.WatchEncoded(t.Context(), "/pods", all(withInitialEvents, withBookmarks), format)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for seen := 0; seen < pods; {
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen += len(events)
	}
	if again := read(); again > used/2 {
		t.Errorf("%d of %d representations are made again after a watch with initial events", again, used)
	}
}

func TestBookmark_HasTheWatchsRevision(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0], func(cfg *Config) { cfg.BookmarkInterval = 30 * time.Millisecond })
	w := f.watch(t, all(from(f.feed.Revision()), withBookmarks))
	last := f.increase(t.Context(), t) // a change that the watch does not select
	ev := events(t, w, 1)[0]
	if ev.Type != apiwatch.Bookmark || ev.Object.ResourceVersion() != last {
		t.Errorf("got %s at %d, want a bookmark at %d", ev.Type, ev.Object.ResourceVersion(), last)
	}
	if bytes.Contains(ev.Object.AppendJSON(nil, true), []byte(metav1.InitialEventsAnnotationKey)) {
		t.Error("a plain bookmark claims to end initial events")
	}
}

func TestBookmark_PrecedesTheTimeout(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for two seconds")
	}
	f := newFixture(t, backends()[0], func(cfg *Config) { cfg.BookmarkInterval = time.Hour })
	first := f.feed.Revision()
	f.increase(t.Context(), t) // before the time for the bookmark can have come
	ctx, cancel := context.WithTimeout(t.Context(), preTimeout+500*time.Millisecond)
	defer cancel()
	w, err := f.WatchEncoded(ctx, "/pods", all(from(first), withBookmarks), f.Stored())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if ev, err := w.Next(ctx); err != nil || ev[0].Type != apiwatch.Bookmark {
		t.Fatalf("got %v, %v", ev, err)
	}
	if _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ends with %v", err)
	}
}

func TestWatch_CompactedRevisionIsExpired(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		f := newFixture(t, b)
		first := f.create(t, "ns", "a", "")
		f.create(t, "ns", "b", "")
		last := f.create(t, "ns", "c", "")
		f.compact(t.Context(), t, last.ResourceVersion)
		revision, _ := parseVersion(first.ResourceVersion)
		if _, err := f.watch(t, all(from(revision))).Next(t.Context()); !apierrors.IsResourceExpired(err) {
			t.Errorf("from %d: %v", revision, err)
		}
		w := f.watch(t, all(from(f.feed.Revision())))
		f.create(t, "ns", "d", "")
		events(t, w, 1)
	})
}

// A watch that breaks resumes in another process without losing an event.
func TestWatch_ResumesAfterARestart(t *testing.T) {
	t.Parallel()
	for _, b := range backends()[1:] {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			driver := b.open(t)
			reopened := backend{b.name, func(testing.TB) sqlstore.Driver { return driver }, b.soleWriter}
			var start int64
			var want []*example.Pod
			t.Run("before", func(t *testing.T) {
				f := newFixture(t, backend{b.name, func(testing.TB) sqlstore.Driver { return keptOpen{driver} }, b.soleWriter})
				start = f.feed.Revision()
				for i := range 5 {
					want = append(want, f.create(t, "ns", fmt.Sprint(i), "x=1"))
				}
			})
			t.Run("after", func(t *testing.T) {
				f := newFixture(t, reopened)
				w := f.watch(t, all(from(start), labelled("x=1")))
				want = append(want, f.create(t, "ns", "after", "x=1"))
				for i, ev := range events(t, w, len(want)) {
					if got := string(ev.Object.AppendJSON(nil, true)); got != f.wire(t, want[i]) {
						t.Errorf("event %d: %s\nwant %s", i, got, f.wire(t, want[i]))
					}
				}
			})
		})
	}
}

// A watcher that does not read does not slow others and loses no event.
func TestWatch_SlowWatcherMissesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	slow := f.watch(t, all(from(f.feed.Revision())))
	fast := f.watch(t, all(from(f.feed.Revision())))
	const n = 5000 // more than the feed's ring holds
	for i := range n {
		f.create(t, "ns", fmt.Sprint(i), "")
		events(t, fast, 1)
	}
	for i, ev := range events(t, slow, n) {
		if raw := ev.Object.AppendJSON(nil, true); !json.Valid(raw) ||
			!strings.Contains(string(raw), fmt.Sprintf(`"name":"%d"`, i)) {
			t.Fatalf("event %d is %s", i, raw)
		}
	}
}

func TestWatch_EndsWithTheFeed(t *testing.T) {
	t.Parallel()
	var w EncodedWatch
	t.Run("running", func(t *testing.T) {
		f := newFixture(t, backends()[0])
		var err error
		if w, err = f.WatchEncoded(context.Background(), "/pods", all(from(f.feed.Revision())), f.Stored()); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := w.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("ends with %v", err)
	}
	w.Close()
}

// A watch that ends after a revision sends every event up to that revision and none after
// it, neither as a change nor among the initial events: later objects belong to the next
// definition.
func TestWatch_EndsAfterARevision(t *testing.T) {
	t.Parallel()
	termination := NewWatchTermination()
	f := newFixture(t, backends()[0], func(c *Config) { c.WatchTermination = termination })
	a := f.create(t, "ns", "a", "")
	start := f.feed.Revision()
	read := func(change ...func(*storage.ListOptions)) string {
		t.Helper()
		w, err := f.WatchEncoded(t.Context(), "/pods/", all(change...), f.Stored())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		var got []string
		for {
			batch, err := w.Next(t.Context())
			for _, ev := range batch {
				got = append(got, string(ev.Type)+" "+podName(ev.Object))
			}
			if errors.Is(err, io.EOF) {
				return strings.Join(got, ", ")
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	f.delete(t, "ns", a.Name)
	last := f.feed.Revision()
	f.create(t, "ns", "next", "")
	termination.After(last)
	for name, test := range map[string]struct {
		change []func(*storage.ListOptions)
		want   string
	}{
		"from before":    {[]func(*storage.ListOptions){from(start)}, "DELETED a"},
		"from the end":   {[]func(*storage.ListOptions){from(last)}, ""},
		"from later":     {[]func(*storage.ListOptions){from(last + 1)}, ""},
		"initial events": {[]func(*storage.ListOptions){withInitialEvents, withBookmarks}, ""},
		"get to recent":  {nil, ""},
	} {
		if got := read(test.change...); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
