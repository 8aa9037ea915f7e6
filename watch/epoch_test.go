package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// Latest never returns a revision of an earlier epoch, even if the feed has got no hint of the
// new epoch and the new epoch's revision is lower.
func TestLatest_FollowsTheEpoch(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: never})
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

// The feed does not load a list that is older than what it has applied: no later change would
// add what the list lacks.
func TestLoad_RefusesAListOlderThanTheFeed(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: never})
	f.write(pod("a", "1"), "x")
	f.write(pod("a", "2"), "x")
	f.source.answer(func(s *source) {
		s.listed = func(listed sqlstore.ListResult) sqlstore.ListResult {
			listed.Revision--
			return listed
		}
	})
	pods := sqlstore.Resource{Resource: "pods"}
	if _, err := f.Snapshot(t.Context(), pods); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("snapshot of an old list: %v", err)
	}
	f.source.answer(func(s *source) { s.listed = nil })
	if s, err := f.Snapshot(t.Context(), pods); err != nil || s.Len() != 2 {
		t.Errorf("snapshot: %v", err)
	}
}

// A call of Latest may learn a revision just before the feed takes over another epoch, which may
// never reach that revision. Latest then asks again and returns a revision of the new epoch.
func TestLatest_AfterARestart(t *testing.T) {
	t.Parallel()
	f := startShared(t, Options{Interval: never})
	f.write(pod("a", "1"), "x")
	if err := f.WaitFor(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	f.awaitUsage()
	restart := true
	f.source.answer(func(s *source) {
		s.state = func(state sqlstore.State) sqlstore.State {
			before := state
			state.Epoch = "another"
			if !restart {
				return state
			}
			restart = false
			f.tail.mu.Lock()
			f.tail.restart(state)
			f.tail.mu.Unlock()
			return before
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if revision, err := f.Latest(ctx); err != nil || revision != 1 {
		t.Errorf("latest: %d, %v", revision, err)
	}
}

// Changes that are published while a reset reads the store's state are later than that
// state. A sole writer's feed, which does not poll, must still apply them.
func TestReset_KeepsWhatIsPublishedMeanwhile(t *testing.T) {
	t.Parallel()
	f := start(t, Options{})
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if revision, err := f.Latest(ctx); err != nil || revision != 2 || f.Revision() != 2 {
		t.Errorf("latest: %d, %v; the feed is at %d", revision, err, f.Revision())
	}
}

func TestReset_EndsSubscriptionsOfLostHistory(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*fixture){
		"compaction": func(f *fixture) {
			f.put(pod("a", "2"), "x")
			f.put(pod("a", "3"), "x")
			storetest.Compact(f.t, f.source, 3)
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
				s.changes = func(all []sqlstore.Change) ([]sqlstore.Change, error) { return all[len(all)-1:], nil }
			})
		},
		"a damaged row": func(f *fixture) {
			f.put(pod("a", "2"), "x")
			f.put(pod("a", "3"), "x")
			f.source.answer(func(s *source) {
				s.changes = func([]sqlstore.Change) ([]sqlstore.Change, error) { return nil, sqlstore.ErrDamaged }
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := startShared(t, Options{Interval: never})
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
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

// A wait for a revision of an epoch that has ended fails at once: the next epoch may begin
// at a lower revision and never reach it.
func TestWait_EndsWithItsEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startShared(t, Options{Interval: never})
		f.write(pod("a", "1"), "x")
		f.write(pod("a", "2"), "x")
		f.awaitUsage()
		// The store answers a list at revision 5, which the feed does not receive.
		f.source.answer(func(s *source) {
			s.listed = func(listed sqlstore.ListResult) sqlstore.ListResult {
				listed.Revision = 5
				return listed
			}
			s.state = func(state sqlstore.State) sqlstore.State {
				state.Revision, state.Epoch = 1, "restored"
				return state
			}
		})
		began := time.Now()
		loaded, waited := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := f.Snapshot(t.Context(), pods)
			loaded <- err
		}()
		go func() { waited <- f.WaitFor(t.Context(), 5) }()
		synctest.Wait()
		f.source.answer(func(s *source) {
			s.listed = func(l sqlstore.ListResult) sqlstore.ListResult { l.Revision = 1; return l }
		})
		f.hint(0)
		if err := <-waited; !errors.Is(err, ErrCompacted) {
			t.Errorf("wait: %v", err)
		}
		if err := <-loaded; err != nil {
			t.Errorf("snapshot: %v", err)
		}
		if passed := time.Since(began); passed >= never {
			t.Errorf("it took %v", passed)
		}
	})
}
