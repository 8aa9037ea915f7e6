package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"byre/sqlstore"
)

func TestSnapshotIsOneRevision(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	f.write(pod("b", "x"), "1")
	f.write(pod("a", "y"), "2")
	before := f.snapshot()
	f.write(pod("a", "x"), "3")
	f.write(pod("b", "x"), "4")
	f.Publish([]sqlstore.Change{f.remove(pod("a", "y"))})
	after := f.snapshot()

	for _, test := range []struct {
		snapshot  Snapshot
		namespace string
		position  *sqlstore.Position
		want      string
	}{
		{before, "", nil, "[a/y=2 b/x=1]"},
		{after, "", nil, "[a/x=3 b/x=4]"},
		{after, "b", nil, "[b/x=4]"},
		{after, "c", nil, "[]"},
		{after, "", &sqlstore.Position{Namespace: "a", Name: "x"}, "[b/x=4]"},
		{after, "", &sqlstore.Position{Namespace: "a", Name: ""}, "[a/x=3 b/x=4]"},
		{after, "b", &sqlstore.Position{Namespace: "b", Name: "x"}, "[]"},
	} {
		if got := f.keys(test.snapshot, test.namespace, test.position); got != test.want {
			t.Errorf("at %d, %q after %v: got %s, want %s", test.snapshot.Revision(), test.namespace, test.position, got, test.want)
		}
	}
	if before.Revision() != 2 || after.Revision() != 5 || after.Since() != 5 || after.Len() != 2 {
		t.Errorf("revisions %d and %d (since %d), %d records", before.Revision(), after.Revision(), after.Since(), after.Len())
	}
}

// found names the records that an index finds by a value.
func (f *fixture) found(index *Index, value string) (names string) {
	f.t.Helper()
	s, err := f.SnapshotIndexed(f.t.Context(), pods, index)
	if err != nil {
		f.t.Fatal(err)
	}
	for e := range s.Indexed(Narrowing{index, value}, "", nil) {
		names += e.Name
	}
	return names
}

func TestIndexFindsAndForgets(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	index := byValue()
	f.write(pod("a", "x"), "1")
	f.write(pod("a", "y"), "2")
	if got := f.found(index, "1"); got != "x" {
		t.Errorf("1 finds %q", got)
	}
	f.write(pod("a", "y"), "1")
	f.write(pod("a", "x"), "2")
	if got := f.found(index, "1") + f.found(index, "2"); got != "yx" {
		t.Errorf("1 and 2 find %q", got)
	}
	f.Publish([]sqlstore.Change{f.remove(pod("a", "y"))})
	if got := f.found(index, "1"); got != "" {
		t.Errorf("1 finds %q after the delete", got)
	}
}

// A record is looked through once for an index, however many look for it by
// that, and never under the lock that every reader and writer needs.
func TestIndexLooksOnceAndOutsideTheLock(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	var mu sync.Mutex
	looked := map[*Entry]int{}
	index := byValue()
	value := index.Value
	index.Value = func(e *Entry) (string, bool) {
		for deadline := time.Now().Add(5 * time.Second); !f.mu.TryLock(); {
			if t.Failed() {
				return value(e)
			}
			if time.Now().After(deadline) {
				t.Error("a record is looked through under the feed's lock")
				return value(e)
			}
			runtime.Gosched()
		}
		f.mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		looked[e]++
		return value(e)
	}
	for i := range 10 {
		f.write(pod("a", fmt.Sprint(i)), fmt.Sprint(i%2))
	}
	one, other := Interest{Narrow: &Narrowing{index, "1"}}, Interest{Narrow: &Narrowing{index, "0"}}
	before := f.snapshot().Revision()
	subs := []*Subscription{f.subscribe(one, before), f.subscribe(other, before), f.subscribe(one, before)}
	for _, s := range subs {
		if events, _, err := s.Poll(t.Context()); err != nil || len(events) > 0 {
			t.Fatal(events, err)
		}
	}
	f.write(pod("a", "1"), "0") // before there is an index of what is stored
	if got := f.found(index, "1"); got != "3579" {
		t.Errorf("1 finds %q", got)
	}
	f.write(pod("a", "3"), "0")
	f.Publish([]sqlstore.Change{f.remove(pod("a", "5"))})
	for i, n := range []int{3, 2, 3} {
		f.next(subs[i], n)
	}
	if got := f.found(index, "1"); got != "79" {
		t.Errorf("1 finds %q", got)
	}
	for e, n := range looked {
		if n != 1 {
			t.Errorf("%s=%s was looked through %d times", e.Name, e.Value, n)
		}
	}
	if len(looked) != 12 {
		t.Errorf("%d records were looked through", len(looked))
	}
}

// A page of what an index finds begins where the page before it ended, whatever
// came before that.
func TestIndexedBeginsAnywhere(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	index := byValue()
	for i, value := range []string{"1", "2", "?", "1", "?", "1"} {
		f.write(pod(string(rune('a'+i/3)), fmt.Sprint(i)), value)
	}
	s, err := f.SnapshotIndexed(f.t.Context(), pods, index)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		namespace string
		after     *sqlstore.Position
		want      string
	}{
		{"", nil, "02345"},
		{"a", nil, "02"},
		{"b", nil, "345"},
		{"b", &sqlstore.Position{Namespace: "a", Name: "9"}, "345"},
		{"b", &sqlstore.Position{Namespace: "b", Name: "4"}, "5"},
		{"a", &sqlstore.Position{Namespace: "a", Name: "0"}, "2"},
		{"", &sqlstore.Position{Namespace: "a", Name: "0"}, "2345"},
		{"", &sqlstore.Position{Namespace: "b", Name: "5"}, ""},
		{"c", nil, ""},
	} {
		got := ""
		for e := range s.Indexed(Narrowing{index, "1"}, test.namespace, test.after) {
			got += e.Name
		}
		if got != test.want {
			t.Errorf("namespace %q after %v: %q, want %q", test.namespace, test.after, got, test.want)
		}
	}
}

// What can't be told is found by every value, in its place, unless Find knows.
func TestIndexFindsWhatItDoesNotKnow(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	for i, value := range []string{"1", "?2", "1", "?", "2"} {
		f.write(pod("a", fmt.Sprint(i)), value)
	}
	index := byValue()
	index.Find = func(e *Entry) (string, bool) {
		value := strings.TrimPrefix(string(e.Value), "?")
		return value, value != ""
	}
	if one, two := f.found(index, "1"), f.found(index, "2"); one != "023" || two != "134" {
		t.Errorf("1 finds %q, 2 finds %q", one, two)
	}
	f.write(pod("a", "1"), "1")
	f.write(pod("a", "3"), "2")
	f.write(pod("a", "5"), "?1")
	if one, two := f.found(index, "1"), f.found(index, "2"); one != "0125" || two != "345" {
		t.Errorf("1 finds %q, 2 finds %q after changes", one, two)
	}
	one := f.subscribe(Interest{Narrow: &Narrowing{index, "1"}}, f.Revision())
	f.write(pod("b", "6"), "2")
	f.write(pod("b", "7"), "?2")
	if ev := f.next(one, 1)[0]; ev.New.Name != "7" {
		t.Errorf("a subscriber of 1 sees %s", ev.New.Name)
	}
}

// An index takes the place of another of its name, not of one that is asked by
// under another name; subscribers keep to their own.
func TestIndexIsReplaced(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	f.write(pod("a", "x"), "12")
	first, second, other := byValue(), byValue(), byValue()
	second.Value = func(e *Entry) (string, bool) { return string(e.Value[1:]), true }
	other.Name = "other"
	old := f.subscribe(Interest{Narrow: &Narrowing{first, "34"}}, f.Revision())
	for _, test := range []struct {
		index *Index
		value string
	}{{first, "12"}, {other, "12"}, {second, "2"}, {first, "12"}, {other, "12"}, {second, "2"}} {
		if got := f.found(test.index, test.value); got != "x" {
			t.Errorf("%s finds %q", test.value, got)
		}
	}
	if n := len(f.caches[pods].indexes); n != 2 {
		t.Errorf("%d indexes are kept", n)
	}
	f.write(pod("a", "y"), "34")
	f.next(old, 1)
}

func TestForgottenIsReadAgain(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	f.write(pod("a", "x"), "1")
	sub := f.subscribe(Interest{}, 0)
	before := f.snapshot()
	f.Forget(pods)
	f.Forget(pods)
	if _, _, err := sub.Next(t.Context()); !errors.Is(err, ErrCompacted) {
		t.Errorf("a subscription goes on: %v", err)
	}
	f.write(pod("a", "y"), "2")
	if got := f.snapshot(); got.Len() != 2 || before.Len() != 1 {
		t.Errorf("%d records, and %d before", got.Len(), before.Len())
	}
}

// A custom resource with the group and the plural of a built-in one is another.
func TestOwnersAreApart(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	custom := pod("a", "x")
	custom.Owner = sqlstore.Custom
	f.write(pod("a", "x"), "1")
	sub, old := f.subscribe(Interest{}, 1), f.subscribe(Interest{}, 0)
	f.snapshot()
	f.write(custom, "2")
	f.write(pod("a", "y"), "3")
	if got := f.next(sub, 1); got[0].Revision != 3 {
		t.Errorf("the watch of the built-in resource has revision %d", got[0].Revision)
	}
	f.next(old, 2)
	if got := f.snapshot(); got.Len() != 2 || string(got.Get("a", "x").Value) != "1" {
		t.Errorf("the built-in resource has %d records", got.Len())
	}
	apart, err := f.Snapshot(t.Context(), Resource{Name: "pods", Owner: sqlstore.Custom})
	if err != nil || apart.Len() != 1 || apart.Get("a", "x").Owner != sqlstore.Custom {
		t.Errorf("the custom resource has %d records, %v", apart.Len(), err)
	}
	f.Forget(Resource{Name: "pods", Owner: sqlstore.Custom})
	if _, _, loaded := f.Lookup(pod("a", "x")); !loaded {
		t.Error("the built-in resource was forgotten with the custom one")
	}
}

// Two processes write; this one is told of its own changes only.
func TestGapsAreReadFromTheStore(t *testing.T) {
	f := start(t, Options{Interval: never})
	f.snapshot()
	sub := f.subscribe(Interest{}, 0)
	f.write(pod("a", "1"), "mine")
	f.put(pod("a", "2"), "theirs")
	f.put(pod("a", "3"), "theirs")
	f.write(pod("a", "4"), "mine")
	for i, ev := range f.next(sub, 4) {
		if ev.Revision != int64(i+1) {
			t.Errorf("event %d has revision %d", i, ev.Revision)
		}
	}
	if got, want := f.keys(f.snapshot(), "", nil), "[a/1=mine a/2=theirs a/3=theirs a/4=mine]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPollFindsWhatNobodyTold(t *testing.T) {
	f := start(t, Options{Interval: 10 * time.Millisecond})
	sub := f.subscribe(Interest{}, 0)
	f.put(pod("a", "1"), "theirs")
	f.next(sub, 1)
}

func TestHintsBringChangesAtOnce(t *testing.T) {
	f := start(t, Options{Interval: never})
	sub := f.subscribe(Interest{}, 0)
	c := f.put(pod("a", "1"), "theirs")
	f.hint(c.Revision + 10) // wrong, and still of use
	f.next(sub, 1)
	f.put(pod("a", "2"), "theirs")
	f.hint(0) // hints may have been lost
	f.next(sub, 1)
}

func TestPublishBeforeRun(t *testing.T) {
	f := start(t, Options{SoleWriter: true, Interval: never})
	f.write(pod("a", "1"), "x")
	f.write(pod("a", "2"), "x")
	if revision, err := f.Latest(t.Context()); err != nil || revision != 2 {
		t.Errorf("latest is %d (%v), want 2", revision, err)
	}
	if got := f.snapshot().Len(); got != 2 {
		t.Errorf("%d records, want 2", got)
	}
}

// Callers of Latest share round trips, but none gets the answer to a question
// that was asked before its own.
func TestLatestSharesRoundTrips(t *testing.T) {
	f := start(t, Options{Interval: never})
	f.snapshot()
	f.awaitUsage()
	release := make(chan struct{})
	first := make(chan struct{}, 1000)
	f.source.answer(func(s *source) {
		s.state = func(state sqlstore.State) sqlstore.State {
			first <- struct{}{}
			<-release
			return state
		}
	})
	before := f.source.states.Load()
	early := make(chan int64, 1)
	latest := func() int64 {
		revision, err := f.Latest(context.Background())
		if err != nil {
			t.Error(err)
		}
		return revision
	}
	go func() { early <- latest() }()
	<-first // its answer is fixed: revision 0
	f.put(pod("a", "1"), "x")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if got := latest(); got != 1 {
				t.Errorf("latest is %d after revision 1 was committed", got)
			}
		})
	}
	for { // until all wait for the second
		f.latest.mu.Lock()
		next := f.latest.next
		f.latest.mu.Unlock()
		if next != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond)
	close(release)
	if got := <-early; got != 0 {
		t.Errorf("the first answer was %d", got)
	}
	all.Wait()
	if trips := f.source.states.Load() - before; trips > 5 {
		t.Errorf("%d round trips for 101 calls", trips)
	}
}

func TestLostHistory(t *testing.T) {
	for name, lose := range map[string]func(*fixture){
		"compaction": func(f *fixture) {
			f.put(pod("a", "2"), "x")
			f.put(pod("a", "3"), "x")
			if _, err := f.source.Compact(context.Background(), 3, 100); err != nil {
				f.t.Fatal(err)
			}
		},
		"restore": func(f *fixture) {
			f.put(pod("a", "2"), "x")
			f.put(pod("a", "3"), "x")
			f.source.answer(func(s *source) {
				s.state = func(state sqlstore.State) sqlstore.State { state.Epoch = "restored"; return state }
			})
		},
		"a hole": func(f *fixture) {
			f.put(pod("a", "2"), "x")
			f.put(pod("a", "3"), "x")
			f.source.answer(func(s *source) {
				s.changes = func(all []sqlstore.Change) []sqlstore.Change { return all[len(all)-1:] }
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, Options{Interval: never})
			f.write(pod("a", "1"), "x")
			f.snapshot()
			sub := f.subscribe(Interest{}, 1)
			idle := f.subscribe(Interest{Namespace: "elsewhere"}, 1)
			if _, _, err := idle.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			lose(f)
			f.hint(0)
			for _, s := range []*Subscription{sub, idle} {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var err error
				for err == nil {
					_, _, err = s.Next(ctx)
				}
				if !errors.Is(err, ErrCompacted) {
					t.Errorf("subscription ended with %v", err)
				}
			}
			if s := f.snapshot(); s.Len() != 3 || s.Revision() != 3 {
				t.Errorf("%d records at %d, want 3 at 3", s.Len(), s.Revision())
			}
		})
	}
}

// Readers and writers at once: every subscriber ends with what the store has.
func TestSubscribersConverge(t *testing.T) {
	const writers, writes, subscribers = 3, 400, 12
	f := start(t, Options{Interval: 5 * time.Millisecond, RingEvents: 16})
	var mu sync.Mutex // the model's changes are read back in order
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range writes {
				mu.Lock()
				key := pod(fmt.Sprint(r.IntN(3)), fmt.Sprint(r.IntN(20)))
				if w == 0 { // another process
					f.put(key, fmt.Sprint(r.IntN(5)))
				} else {
					f.write(key, fmt.Sprint(r.IntN(5)))
				}
				mu.Unlock()
			}
		})
	}
	for i := range subscribers {
		all.Go(func() { follow(f, i, writers*writes) })
	}
	all.Wait()
}

// follow keeps a copy of one namespace (or of all) by a subscription, and
// compares it with the store at the end.
func follow(f *fixture, i, end int) {
	want := Interest{Resource: pods}
	if i%2 == 1 {
		want.Namespace = fmt.Sprint(i % 3)
	}
	snapshot := f.snapshot()
	got := map[sqlstore.Key]string{}
	for e := range snapshot.All(want.Namespace, nil) {
		got[e.Key] = string(e.Value)
	}
	sub, err := f.Subscribe(context.Background(), want, snapshot.Revision())
	if err != nil {
		f.t.Error(err)
		return
	}
	defer sub.Close()
	last := snapshot.Revision()
	for upTo := last; upTo < int64(end); {
		var events []Event
		if events, upTo, err = sub.Poll(context.Background()); err != nil {
			f.t.Error(err)
			return
		}
		for _, ev := range events {
			if ev.Revision <= last {
				f.t.Errorf("%d came after %d", ev.Revision, last)
			}
			last = ev.Revision
			if old := got[ev.Key()]; ev.Old != nil && string(ev.Old.Value) != old {
				f.t.Errorf("%d replaced %q, but %q was there", ev.Revision, ev.Old.Value, old)
			}
			got[ev.Key()] = string(ev.New.Value)
		}
		if len(events) == 0 && upTo < int64(end) {
			select {
			case <-sub.Ready():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	n := 0
	for e := range f.snapshot().All(want.Namespace, nil) {
		n++
		if got[e.Key] != string(e.Value) {
			f.t.Errorf("%v is %q, want %q", e.Key, got[e.Key], e.Value)
		}
	}
	if n != len(got) {
		f.t.Errorf("%d records, want %d", len(got), n)
	}
}
