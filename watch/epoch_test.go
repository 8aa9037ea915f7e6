package watch

import (
	"context"
	"errors"
	"testing"
	"time"

	"byre/sqlstore"
)

// A read that is to be the latest is not answered from what was read in another
// epoch, even if nobody has told the feed, and the revision is not later.
func TestLatestFollowsTheEpoch(t *testing.T) {
	f := start(t, Options{Interval: never})
	f.write(pod("a", "1"), "x")
	f.write(pod("a", "2"), "x")
	before := f.snapshot()
	sub := f.subscribe(Interest{}, 2)
	f.source.answer(func(s *source) {
		s.state = func(state sqlstore.State) sqlstore.State {
			state.Revision, state.Epoch = 1, "another"
			return state
		}
	})
	if revision, err := f.Latest(t.Context()); err != nil || revision != 1 {
		t.Fatalf("latest: %d, %v", revision, err)
	}
	if f.Revision() != 1 || f.snapshot().Same(before) {
		t.Errorf("the feed is at %d, with what it had before: %v", f.Revision(), f.snapshot().Same(before))
	}
	if _, _, err := sub.Next(t.Context()); !errors.Is(err, ErrCompacted) {
		t.Errorf("subscription: %v", err)
	}
}

// A list that is older than what the feed has applied is not taken for the
// current state: nothing would bring what it lacks.
func TestListOlderThanTheFeed(t *testing.T) {
	f := start(t, Options{Interval: never})
	f.write(pod("a", "1"), "x")
	f.write(pod("a", "2"), "x")
	f.source.answer(func(s *source) {
		s.listed = func(listed sqlstore.ListResult) sqlstore.ListResult {
			listed.Revision--
			return listed
		}
	})
	pods := Resource{Name: "pods"}
	if _, err := f.Snapshot(t.Context(), pods); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("snapshot of an old list: %v", err)
	}
	f.source.answer(func(s *source) { s.listed = nil })
	if s, err := f.Snapshot(t.Context(), pods); err != nil || s.Len() != 2 {
		t.Errorf("snapshot: %v", err)
	}
}

// A read whose revision was read just before the feed took over another epoch is
// answered from that one: nothing else would ever end its wait.
func TestLatestAfterTheEpochWasAdopted(t *testing.T) {
	f := start(t, Options{Interval: never})
	f.write(pod("a", "1"), "x")
	if err := f.WaitFor(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	f.awaitUsage()
	adopt := true
	f.source.answer(func(s *source) {
		s.state = func(state sqlstore.State) sqlstore.State {
			before := state
			state.Epoch = "another"
			if !adopt {
				return state
			}
			adopt = false
			f.mu.Lock()
			f.adoptLocked(state)
			f.mu.Unlock()
			return before
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if revision, err := f.Latest(ctx); err != nil || revision != 1 {
		t.Errorf("latest: %d, %v", revision, err)
	}
}

// What is published while a reset reads the store's state is later than that
// state. A sole writer, which is not polled, must still get to it.
func TestPublishDuringReset(t *testing.T) {
	f := start(t, Options{SoleWriter: true})
	f.write(pod("a", "1"), "x")
	if err := f.WaitFor(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	f.awaitUsage()
	publish := true
	f.source.answer(func(s *source) {
		s.state = func(state sqlstore.State) sqlstore.State {
			if publish {
				publish = false
				f.write(pod("a", "2"), "x")
			}
			return state
		}
	})
	if err := f.reset(t.Context(), resetHole); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if revision, err := f.Latest(ctx); err != nil || revision != 2 || f.Revision() != 2 {
		t.Errorf("latest: %d, %v; the feed is at %d", revision, err, f.Revision())
	}
}
