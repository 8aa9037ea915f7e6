package watch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// A feed stops before an index that is being built has called Find for every record: each call
// may take as long as the timeout of a decryption.
func TestIndex_BuildEndsWithTheFeed(t *testing.T) {
	t.Parallel()
	f := New(&source{Model: storetest.NewModel()}, Options{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	w := &fixture{t: t, Feed: f, source: f.tail.source.(*source)}
	for i := range 100 {
		w.write(pod("a", fmt.Sprint(i)), "?")
	}
	var asked atomic.Int64
	index := byValue()
	index.Find = func(*Entry) (string, bool) {
		asked.Add(1)
		stop()
		return "", false
	}
	if _, err := f.SnapshotIndexed(t.Context(), pods, index); !errors.Is(err, ErrClosed) {
		t.Errorf("snapshot: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("Find was called for %d records, want 1", n)
	}
}

// found returns the names of the records that an index finds by a value.
func (f *fixture) found(index *Index, value string) (names string) {
	f.t.Helper()
	s, err := f.SnapshotIndexed(f.t.Context(), pods, index)
	if err != nil {
		f.t.Fatal(err)
	}
	for e := range s.Indexed(MatchValue{index, value}, "", nil) {
		names += e.Name
	}
	return names
}

func TestIndex_FindsAndForgets(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
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

// The feed calls Index.Value once for each record, however many lookups there are at the same
// time, and never while it holds a lock that every reader or writer needs.
func TestIndex_LooksOnceAndOutsideTheLock(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	var mu sync.Mutex
	looked := map[*Entry]int{}
	index := byValue()
	value := index.Value
	index.Value = func(e *Entry) (string, bool) {
		for _, lock := range []interface {
			TryLock() bool
			Unlock()
		}{&f.tail.mu, &f.state.mu} {
			for deadline := time.Now().Add(time.Minute); !lock.TryLock(); {
				if t.Failed() {
					return value(e)
				}
				if time.Now().After(deadline) {
					t.Error("a record is looked through under a lock of the feed")
					return value(e)
				}
				runtime.Gosched()
			}
			lock.Unlock()
		}
		mu.Lock()
		defer mu.Unlock()
		looked[e]++
		return value(e)
	}
	for i := range 10 {
		f.write(pod("a", fmt.Sprint(i)), fmt.Sprint(i%2))
	}
	one, other := Interest{Match: MatchValue{index, "1"}}, Interest{Match: MatchValue{index, "0"}}
	before := f.snapshot().Revision()
	subs := []*Subscription{f.subscribe(one, before), f.subscribe(other, before), f.subscribe(one, before)}
	for _, s := range subs {
		if events, _, err := s.Poll(t.Context()); err != nil || len(events) > 0 {
			t.Fatal(events, err)
		}
	}
	f.write(pod("a", "1"), "0") // before an index of the stored record exists
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
			t.Errorf("%s=%s was looked through %d times", e.Name, e.Value(), n)
		}
	}
	if len(looked) != 12 {
		t.Errorf("%d records were looked through", len(looked))
	}
}

// A page of an index begins after any position, whatever the records before that position are.
func TestIndex_PageBeginsAnywhere(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
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
		for e := range s.Indexed(MatchValue{index, "1"}, test.namespace, test.after) {
			got += e.Name
		}
		if got != test.want {
			t.Errorf("namespace %q after %v: %q, want %q", test.namespace, test.after, got, test.want)
		}
	}
}

// A record whose value is unknown is found by every value, in key order, unless Find returns
// its value.
func TestIndex_FindsUnknownValuesByEveryValue(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	for i, value := range []string{"1", "?2", "1", "?", "2"} {
		f.write(pod("a", fmt.Sprint(i)), value)
	}
	index := byValue()
	index.Find = func(e *Entry) (string, bool) {
		value := strings.TrimPrefix(string(e.Value()), "?")
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
	one := f.subscribe(Interest{Match: MatchValue{index, "1"}}, f.Revision())
	f.write(pod("b", "6"), "2")
	f.write(pod("b", "7"), "?2")
	if ev := f.next(one, 1)[0]; ev.New.Name != "7" {
		t.Errorf("a subscriber of 1 sees %s", ev.New.Name)
	}
}

// An index replaces another one of its name, and not one of another name. Subscribers keep
// the index that they began with.
func TestIndex_IsReplacedByName(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	f.write(pod("a", "x"), "12")
	first, second, other := byValue(), byValue(), byValue()
	second.Value = func(e *Entry) (string, bool) { return string(e.Value()[1:]), true }
	other.Name = "other"
	old := f.subscribe(Interest{Match: MatchValue{first, "34"}}, f.Revision())
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
