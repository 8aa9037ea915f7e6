package watch

import (
	"errors"
	"testing"
	"time"

	"byre/sqlstore"
)

func TestSnapshot_IsOneRevision(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
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

func TestFeed_ReadsAForgottenResourceAgain(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
	f.write(pod("a", "x"), "1")
	sub := f.subscribe(Interest{}, 0)
	before := f.snapshot()
	f.Forget(pods)
	f.Forget(pods)
	if _, _, err := sub.Next(t.Context()); !errors.Is(err, ErrCompacted) {
		t.Errorf("a subscription of a forgotten resource: %v", err)
	}
	f.write(pod("a", "y"), "2")
	if got := f.snapshot(); got.Len() != 2 || before.Len() != 1 {
		t.Errorf("%d records, and %d before", got.Len(), before.Len())
	}
}

// A custom resource with the group and plural of a built-in one is another resource.
func TestFeed_KeepsOwnersApart(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
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
	if got := f.snapshot(); got.Len() != 2 || string(got.Get("a", "x").Value()) != "1" {
		t.Errorf("the built-in resource has %d records", got.Len())
	}
	apart, err := f.Snapshot(t.Context(), sqlstore.Resource{Resource: "pods", Owner: sqlstore.Custom})
	if err != nil || apart.Len() != 1 || apart.Get("a", "x").Owner != sqlstore.Custom {
		t.Errorf("the custom resource has %d records, %v", apart.Len(), err)
	}
	f.Forget(sqlstore.Resource{Resource: "pods", Owner: sqlstore.Custom})
	if _, _, loaded := f.Lookup(pod("a", "x")); !loaded {
		t.Error("the built-in resource was forgotten with the custom one")
	}
}

// Two processes write, and the feed gets only the changes of one of them by Publish.
func TestFeed_ReadsGapsFromTheStore(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: never})
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

func TestFeed_PollFindsUnannouncedChanges(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: 10 * time.Millisecond})
	sub := f.subscribe(Interest{}, 0)
	f.put(pod("a", "1"), "theirs")
	f.next(sub, 1)
}

func TestFeed_HintsBringChangesAtOnce(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: never})
	sub := f.subscribe(Interest{}, 0)
	c := f.put(pod("a", "1"), "theirs")
	f.hint(c.Revision + 10) // a wrong revision still makes the feed ask the store
	f.next(sub, 1)
	f.put(pod("a", "2"), "theirs")
	f.hint(0) // hints may have been lost
	f.next(sub, 1)
}

func TestFeed_PublishBeforeRun(t *testing.T) {
	t.Parallel()
	f := start(t, Options{Interval: never})
	f.write(pod("a", "1"), "x")
	f.write(pod("a", "2"), "x")
	if revision, err := f.Latest(t.Context()); err != nil || revision != 2 {
		t.Errorf("latest is %d (%v), want 2", revision, err)
	}
	if got := f.snapshot().Len(); got != 2 {
		t.Errorf("%d records, want 2", got)
	}
}
