package process

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestShutdown_HasUpstreamsOrder compares the order with the diagram at
// GenericAPIServer.RunWithContext in k8s.io/apiserver/pkg/server/genericapiserver.go: an action
// begins as soon as all that it waits for have returned, and not before.
func TestShutdown_HasUpstreamsOrder(t *testing.T) {
	t.Parallel()
	for sendRetryAfter, want := range map[bool][][]string{
		false: {{"delay", "leave"}, {"drain requests", "drain watches", "stop listening"}, {"close"}},
		true:  {{"delay", "leave"}, {"drain requests", "drain watches"}, {"stop listening"}, {"close"}},
	} {
		synctest.Test(t, func(t *testing.T) { testShutdownOrder(t, sendRetryAfter, want) })
	}
}

func testShutdownOrder(t *testing.T, sendRetryAfter bool, want [][]string) {
	s := NewSignals()
	begun, release := make(chan string, 10), make(chan struct{})
	action := func(name string) func() {
		return func() {
			begun <- name
			<-release
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Shutdown(Actions{
			Delay: action("delay"), PreShutdown: action("leave"), DrainRequests: action("drain requests"),
			DrainWatches: action("drain watches"), StopListening: action("stop listening"), CloseConnections: action("close"),
		}, sendRetryAfter)
	}()
	for i, stage := range want {
		synctest.Wait()
		var got []string
		for range len(begun) {
			got = append(got, <-begun)
		}
		if slices.Sort(got); !slices.Equal(got, stage) {
			t.Errorf("with sendRetryAfter=%t, after %v: %v have begun", sendRetryAfter, want[:i], got)
		}
		if hasHappened(s.NotAcceptingNewRequest) != (i > 0) || !hasHappened(s.ShutdownInitiated) {
			t.Errorf("the signals are wrong after %v", want[:i])
		}
		for n := range stage { // one by one: the next stage waits for all of this one
			release <- struct{}{}
			if synctest.Wait(); n < len(stage)-1 && len(begun) > 0 {
				t.Errorf("%s has begun when %d of %v have ended", <-begun, n+1, stage)
			}
		}
	}
	<-ended
}

func hasHappened(s *Signal) bool {
	select {
	case <-s.Signaled():
		return true
	default:
		return false
	}
}

// trace records what happens, in order.
type trace struct {
	mu     sync.Mutex
	events []string
}

func (t *trace) add(event string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, event)
}

// component runs until its stage stops.
func (t *trace) component(name string) Component {
	return Component{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		t.add(name + " ended")
		return nil
	}}
}

func noFailure(t *testing.T) func(error) {
	return func(err error) { t.Errorf("failed: %v", err) }
}

func TestStages_StopInReverseOrder(t *testing.T) {
	t.Parallel()
	var seen trace
	stages := NewStages(noFailure(t))
	for _, name := range []string{"store", "feed", "controllers"} {
		err := stages.Start(t.Context(), Stage{
			Name:       name,
			Components: []Component{seen.component(name)},
			Prepare:    func(context.Context) { seen.add(name + " prepared") },
			Await:      func(context.Context) error { seen.add(name + " started"); return nil },
			Release:    func() { seen.add(name + " released") },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	stages.StopStage("controllers")
	stages.Stop()
	want := []string{
		"store prepared", "store started", "feed prepared", "feed started", "controllers prepared", "controllers started",
		"controllers ended", "controllers released", "feed ended", "feed released", "store ended", "store released",
	}
	slices.Sort(seen.events[6:8]) // a component may end before Release or after it
	slices.Sort(seen.events[8:10])
	slices.Sort(seen.events[10:12])
	if !slices.Equal(seen.events, want) {
		t.Errorf("got  %v\nwant %v", seen.events, want)
	}
}

// A stage continues after the context of Start has ended: a server drains requests after
// that.
func TestStages_OutliveTheContextOfStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	stages := NewStages(noFailure(t))
	contexts := make(chan context.Context, 1)
	if err := stages.Start(ctx, Stage{Prepare: func(c context.Context) { contexts <- c }}); err != nil {
		t.Fatal(err)
	}
	own := <-contexts
	cancel()
	if own.Err() != nil {
		t.Error("the stage ended with the context of Start")
	}
	stages.Stop()
	if own.Err() == nil {
		t.Error("Stop did not end the stage")
	}
}

func TestStages_ReportEarlyEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		component Component
		want      string
	}{
		"an error": {Component{Name: "feed", Run: func(context.Context) error {
			return broken
		}}, "feed: broken"},
		"an end": {Component{Name: "feed", Run: func(context.Context) error {
			return nil
		}}, "feed ended before it was stopped"},
		"an end that is allowed": {Component{Name: "feed", Run: func(context.Context) error {
			return nil
		}, MayEnd: true}, ""},
	} {
		var got string
		ended := make(chan struct{})
		stages := NewStages(func(err error) { got = err.Error() })
		run := test.component.Run
		test.component.Run = func(ctx context.Context) error {
			defer close(ended)
			return run(ctx)
		}
		if err := stages.Start(t.Context(), Stage{Components: []Component{test.component}}); err != nil {
			t.Fatal(err)
		}
		<-ended
		// This waits for the component without ending its context.
		stages.running[0].components.Wait()
		if got != test.want {
			t.Errorf("%s: reported %q, want %q", name, got, test.want)
		}
		stages.Stop()
	}
}

// Stop stops a stage that was started even if Await has failed.
func TestStages_StopAfterAFailedStart(t *testing.T) {
	t.Parallel()
	var seen trace
	stages := NewStages(noFailure(t))
	broken := errors.New("broken")
	err := stages.Start(t.Context(), Stage{
		Components: []Component{seen.component("store")},
		Await:      func(context.Context) error { return broken },
	})
	if !errors.Is(err, broken) {
		t.Errorf("Start returned %v", err)
	}
	stages.Stop()
	if !slices.Equal(seen.events, []string{"store ended"}) {
		t.Errorf("got %v", seen.events)
	}
}
