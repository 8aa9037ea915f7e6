package watch

import (
	"bytes"
	"cmp"
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
		return fmt.Sprintf("revision %d, %d resources in memory, %d changes read from the store\n", in.f.Revision(), resources, in.f.source.rows.Load())
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
			fmt.Fprintf(&out, "%d %s/%s: %s -> %s\n", ev.Revision, ev.Key().Namespace, ev.Key().Name, valueOf(ev.Old), valueOf(ev.New))
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
