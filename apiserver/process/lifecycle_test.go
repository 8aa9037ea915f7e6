package process

import (
	"slices"
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
