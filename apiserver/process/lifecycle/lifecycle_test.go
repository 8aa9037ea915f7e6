package lifecycle

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestShutdownOrder_IsUpstreams compares the order with the diagram at
// GenericAPIServer.RunWithContext in k8s.io/apiserver/pkg/server/genericapiserver.go.
func TestShutdownOrder_IsUpstreams(t *testing.T) {
	t.Parallel()
	order := func(sendRetryAfter bool) map[string][]string {
		after := map[string][]string{}
		for _, step := range NewSignals().Shutdown(Actions{}, sendRetryAfter) {
			for _, signal := range step.After {
				after[step.Done.Name()] = append(after[step.Done.Name()], signal.Name())
			}
		}
		return after
	}
	want := map[string][]string{
		"AfterShutdownDelayDuration":    {"ShutdownInitiated"},
		"PreShutdownHooksStopped":       {"ShutdownInitiated"},
		"NotAcceptingNewRequest":        {"AfterShutdownDelayDuration", "PreShutdownHooksStopped"},
		"NonLongRunningRequestsDrained": {"NotAcceptingNewRequest"},
		"WatchesDrained":                {"NotAcceptingNewRequest"},
		"InFlightRequestsDrained":       {"NonLongRunningRequestsDrained", "WatchesDrained"},
		"HTTPServerStoppedListening":    {"NotAcceptingNewRequest"},
		"ConnectionsClosed":             {"InFlightRequestsDrained", "HTTPServerStoppedListening"},
	}
	if diff := cmp.Diff(want, order(false)); diff != "" {
		t.Errorf("without --shutdown-send-retry-after (-want +got):\n%s", diff)
	}
	want["HTTPServerStoppedListening"] = []string{"InFlightRequestsDrained"}
	if diff := cmp.Diff(want, order(true)); diff != "" {
		t.Errorf("with --shutdown-send-retry-after (-want +got):\n%s", diff)
	}
}

// TestRun_FollowsTheOrder: an action begins only after all actions that it waits for have
// returned.
func TestRun_FollowsTheOrder(t *testing.T) {
	t.Parallel()
	for _, sendRetryAfter := range []bool{false, true} {
		s := NewSignals()
		var mu sync.Mutex
		var done []string
		steps := s.Shutdown(Actions{}, sendRetryAfter)
		for i := range steps {
			step := &steps[i]
			step.Do = func() {
				mu.Lock()
				defer mu.Unlock()
				for _, before := range step.After {
					if before != s.ShutdownInitiated && !slices.Contains(done, before.Name()) {
						t.Errorf("%s began before %s", step.Done.Name(), before.Name())
					}
				}
				if step.Done.HasHappened() {
					t.Errorf("%s is signaled before it is done", step.Done.Name())
				}
				done = append(done, step.Done.Name())
			}
		}
		s.ShutdownInitiated.Signal()
		Run(steps)
		if len(done) != len(steps) || !s.ConnectionsClosed.HasHappened() {
			t.Errorf("%d of %d steps were done", len(done), len(steps))
		}
	}
}

// TestRun_RefusesADeadlock: Run panics instead of waiting forever.
func TestRun_RefusesADeadlock(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("it was run")
		}
	}()
	s := NewSignals()
	Run(s.Shutdown(Actions{}, false)) // ShutdownInitiated is not signaled
}
