package watch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
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
			t.Errorf("at %d, %q after %v: got %s, want %s", test.snapshot.Revision(), test.namespace, test.position, got,
				test.want)
		}
	}
	if before.Revision() != 2 || after.Revision() != 5 || after.Since() != 5 || after.Len() != 2 {
		t.Errorf("revisions %d and %d (since %d), %d records", before.Revision(), after.Revision(), after.Since(),
			after.Len())
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

// TestFeed_FollowsScripts runs the scripts in testdata, as etcd-io/raft does. The output of
// a command is what it returns, what the feed logs, and which subscriptions it wakes. After
// each command the feed runs until it is idle. To accept the current output: go test
// ./watch -run TestFeed_FollowsScripts -rewrite.
func TestFeed_FollowsScripts(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := &interaction{subscriptions: map[string]*Subscription{}}
				datadriven.RunTest(t, path, in.run)
			})
		})
	}
}

// interaction is a feed, the store that it follows and the subscriptions to it.
type interaction struct {
	f             *fixture
	log           bytes.Buffer
	subscriptions map[string]*Subscription
}

func (in *interaction) run(t *testing.T, d *datadriven.TestData) string {
	in.log.Reset()
	returned := in.command(t, d)
	time.Sleep(10 * defaultWakeInterval) // by the clock of synctest
	synctest.Wait()
	out := returned + in.log.String()
	for _, name := range slices.Sorted(maps.Keys(in.subscriptions)) {
		select {
		case <-in.subscriptions[name].Ready():
			out += name + " is woken\n"
		default:
		}
	}
	return cmp.Or(out, "ok\n")
}

func (in *interaction) command(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "start":
		in.start(t, d)
	case "write": // by this process
		for _, pair := range d.CmdArgs {
			in.f.write(parseKey(pair.Key), pair.Vals[0])
		}
	case "commit": // by another process, or not published yet
		for _, pair := range d.CmdArgs {
			in.f.put(parseKey(pair.Key), pair.Vals[0])
		}
	case "delete":
		in.f.Publish([]sqlstore.Change{in.f.remove(parseKey(d.CmdArgs[0].Key))})
	case "publish":
		var after int64
		d.ScanArgs(t, "revision", &after)
		changes, err := in.f.source.Model.Changes(t.Context(), sqlstore.ChangesQuery{After: after - 1, Limit: 1})
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		in.f.Publish(changes)
	case "hint":
		var revision int64
		d.ScanArgs(t, "revision", &revision)
		in.f.hint(revision)
	case "compact":
		var revision int
		d.ScanArgs(t, "revision", &revision)
		storetest.Compact(t, in.f.source, int64(revision))
	case "restore": // as if the database were another one
		epoch := d.CmdArgs[0].Key
		in.f.source.answer(func(s *source) {
			s.state = func(state sqlstore.State) sqlstore.State { state.Epoch = epoch; return state }
		})
	case "subscribe":
		return in.add(t, d)
	case "poll":
		return in.poll(t, d)
	case "unload":
		in.f.checks(idleChecks + 1)
	case "state":
		resources, _ := in.f.size()
		return fmt.Sprintf("revision %d, %d resources in memory, %d changes read from the store\n", in.f.Revision(),
			resources, in.f.source.rows.Load())
	default:
		d.Fatalf(t, "no such command: %s", d.Cmd)
	}
	return ""
}

// start starts a feed: "start [shared] [ring=N]".
func (in *interaction) start(t *testing.T, d *datadriven.TestData) {
	opts := Options{Interval: never, Logger: slog.New(slog.NewTextHandler(&in.log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))}
	scan(t, d, "ring", &opts.RingEvents)
	if d.HasArg("shared") {
		in.f = startShared(t, opts)
	} else {
		in.f = start(t, opts)
	}
}

// add subscribes: "subscribe NAME [namespace=N] [name=N] [value=V] [after=R] [follow]".
func (in *interaction) add(t *testing.T, d *datadriven.TestData) string {
	want := Interest{Resource: pods}
	var value string
	var after int64
	scan(t, d, "namespace", &want.Namespace)
	scan(t, d, "name", &want.Name)
	scan(t, d, "after", &after)
	if scan(t, d, "value", &value) {
		want.Match = MatchValue{byValue(), value}
	}
	subscribe := func() (*Subscription, error) { return in.f.Subscribe(t.Context(), want, after) }
	if d.HasArg("follow") {
		subscribe = func() (*Subscription, error) { return in.f.Follow(t.Context(), pods, after) }
	}
	s, err := subscribe()
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	in.subscriptions[d.CmdArgs[0].Key] = s
	t.Cleanup(s.Close)
	return ""
}

// poll reads the pending events: "poll NAME".
func (in *interaction) poll(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	for {
		events, upTo, err := in.subscriptions[d.CmdArgs[0].Key].Poll(t.Context())
		switch {
		case errors.Is(err, ErrCompacted):
			return out.String() + "ends: compacted\n"
		case err != nil:
			d.Fatalf(t, "%v", err)
		case len(events) == 0:
			return out.String() + fmt.Sprintf("waits after %d\n", upTo)
		}
		for _, ev := range events {
			fmt.Fprintf(&out, "%d %s/%s: %s -> %s\n", ev.Revision, ev.Key().Namespace, ev.Key().Name, valueOf(ev.Old),
				valueOf(ev.New))
		}
	}
}

func valueOf(e *Entry) string {
	if e == nil {
		return "nothing"
	}
	return string(e.Value())
}

// scan sets dest from an argument, if the command has it.
func scan(t *testing.T, d *datadriven.TestData, argument string, dest any) bool {
	if d.HasArg(argument) {
		d.ScanArgs(t, argument, dest)
		return true
	}
	return false
}

func parseKey(text string) sqlstore.Key {
	namespace, name, _ := strings.Cut(text, "/")
	return pod(namespace, name)
}
