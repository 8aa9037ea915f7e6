package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// slowSource takes a pause after each record that it lists.
type slowSource struct {
	*source
	pause time.Duration
}

func (s *slowSource) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	return s.source.List(ctx, q, func(r sqlstore.Record) error {
		err := yield(r)
		time.Sleep(s.pause)
		return err
	})
}

// The feed logs how far the load of a resource is that takes longer than two seconds, and nothing
// of another one.
func TestLoad_LogsProgressAfterTwoSeconds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pause time.Duration
		want  string
	}{
		{600 * time.Millisecond, ""},
		{5 * time.Second, `level=INFO msg="watch: loading objects" group="" resource=pods objects=1 elapsed=2s of=3
level=INFO msg="watch: loading objects" group="" resource=pods objects=3 elapsed=12s of=3
`},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			withoutTime := func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}
			s := &source{Model: storetest.NewModel()}
			f := &fixture{t: t, source: s, Feed: New(&slowSource{s, test.pause}, Options{
				Interval: never, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
			})}
			for i := range 3 {
				f.put(pod("a", fmt.Sprint(i)), "1")
			}
			run(t, f)
			f.awaitUsage()
			if n := f.snapshot().Len(); n != 3 {
				t.Errorf("%d objects are loaded", n)
			}
			if log.String() != test.want {
				t.Errorf("with a pause of %v after each object the log has\n%swant\n%s", test.pause, &log, test.want)
			}
		})
	}
}

// checks calls state.unload n times.
func (f *fixture) checks(n int) {
	for range n {
		f.unload()
	}
}

// The feed unloads the records of a resource that is neither read nor watched. When it loads them
// again they are the current ones.
func TestUnload_UnreadStateLeavesMemory(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	f.write(pod("a", "x"), "1")
	f.snapshot()
	for range 3 * idleChecks { // read all the time
		f.Lookup(pod("a", "x"))
		f.unload()
	}
	if !f.IsLoaded(pods) {
		t.Fatal("records that are read were unloaded")
	}
	sub := f.subscribe(Interest{}, f.Revision())
	f.checks(3 * idleChecks)
	f.write(pod("a", "y"), "2")
	f.next(sub, 1)
	if !f.IsLoaded(pods) {
		t.Fatal("records that are watched were unloaded")
	}
	sub.Close()
	sub.Close()
	f.checks(idleChecks + 1)
	if _, bytes := f.size(); f.IsLoaded(pods) || bytes != 0 || len(f.caches) != 0 {
		t.Errorf("%d bytes of %d resources are in memory", bytes, len(f.caches))
	}
	f.write(pod("a", "z"), "3")
	if got := f.keys(f.snapshot(), "", nil); got != "[a/x=1 a/y=2 a/z=3]" {
		t.Errorf("loaded again: %s", got)
	}
	if _, n := f.size(); n != 3 {
		t.Errorf("%d bytes are in memory", n)
	}
}

// What authenticates and authorizes requests stays, because the store may be away.
func TestUnload_ResidentResourcesStay(t *testing.T) {
	t.Parallel()
	f := start(t, Options{Resident: []sqlstore.Resource{pods}, StateBytes: 1})
	f.write(pod("a", "x"), "1")
	f.snapshot()
	f.checks(2 * idleChecks)
	if !f.IsLoaded(pods) {
		t.Error("a resident resource was unloaded")
	}
}

// Over the budget, the state that was not read for the longest time is unloaded first, and
// state that is read stays.
func TestUnload_StateBytesIsABudget(t *testing.T) {
	t.Parallel()
	f := start(t, Options{StateBytes: 2500})
	read := func(resources ...string) {
		for _, name := range resources {
			if _, err := f.Snapshot(t.Context(), sqlstore.Resource{Resource: name}); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(want string) {
		t.Helper()
		got := ""
		for _, name := range []string{"a", "b", "c", "d"} {
			if h := f.caches[sqlstore.Resource{Resource: name}]; h != nil && h.loaded {
				got += name
			}
		}
		if got != want {
			t.Errorf("%q are in memory, want %q", got, want)
		}
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		f.write(sqlstore.Key{Resource: name, Name: "x"}, strings.Repeat("x", 1000))
	}
	read("a", "b")
	f.checks(3)
	expect("ab")
	read("b", "c")
	f.checks(1) // a has been unread the longest; b and c were read since
	expect("bc")
	read("b", "d")
	f.checks(1)
	expect("bd")
	read("a", "b", "c", "d")
	f.checks(1)
	expect("abcd")
	f.checks(1)
	if _, n := f.size(); n > 2500 {
		t.Errorf("%d bytes are in memory", n)
	}
}

// A follower gets each change once and in order, whether the records are in memory, being
// loaded or unloaded, or not loaded.
func TestFollow_SeesEachChangeOnce(t *testing.T) {
	t.Parallel()
	const n = 400
	f := start(t, Options{RingEvents: 64})
	last := f.write(pod("a", "0"), "0").Revision
	if err := f.WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	s, err := f.Follow(t.Context(), pods, last)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if f.IsLoaded(pods) {
		t.Error("a follower has the records loaded")
	}
	var group sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	group.Go(func() { // readers, and checks of what is unused
		for ctx.Err() == nil {
			snapshot, err := f.Snapshot(ctx, pods)
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			if snapshot.Len() == 0 {
				t.Error("an empty snapshot")
			}
			f.checks(idleChecks + 1)
		}
	})
	group.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for i := range n {
			key := pod("a", fmt.Sprint(1+random.IntN(20)))
			if _, _, err := f.source.Get(t.Context(), key); err == nil && random.IntN(3) == 0 {
				f.Publish([]sqlstore.Change{f.remove(key)})
			} else {
				f.write(key, fmt.Sprint(i))
			}
		}
	})
	for _, ev := range f.next(s, n) {
		if last++; ev.Revision != last {
			t.Fatalf("revision %d comes where %d should", ev.Revision, last)
		}
	}
	stop()
	group.Wait()
}

// A follower whose resource did not change for long reads no history from the store when others
// have loaded and unloaded the records meanwhile.
func TestFollow_IdleReadsNoHistory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for checks of the feed")
	}
	f := start(t, Options{})
	f.write(pod("a", "x"), "1")
	f.snapshot()
	f.checks(idleChecks + 1)
	s, err := f.Follow(t.Context(), pods, f.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	poll := func(want int) {
		t.Helper()
		if want > 0 {
			f.next(s, want)
		}
		if events, _, err := s.Poll(t.Context()); err != nil || len(events) > 0 {
			t.Fatal(events, err)
		}
	}
	poll(0)
	for range 3 {
		for range 10 {
			f.write(sqlstore.Key{Resource: "others", Name: "x"}, "1")
		}
		f.snapshot()
		rows := f.source.rows.Load()
		poll(0)
		f.write(pod("a", "x"), "2")
		poll(1)
		f.checks(idleChecks + 1)
		if f.IsLoaded(pods) {
			t.Fatal("the records are in memory")
		}
		poll(0)
		f.write(pod("a", "x"), "3")
		poll(1)
		if read := f.source.rows.Load() - rows; read > 0 {
			t.Errorf("%d changes are read from the store", read)
		}
	}
}
