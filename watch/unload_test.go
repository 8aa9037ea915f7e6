package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"byre/sqlstore"
)

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
