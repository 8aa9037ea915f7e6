package lifecycle

import (
	"fmt"
	"sync"

	"k8s.io/klog/v2"
)

// Signal is a named event that happens once and stays.
type Signal struct {
	name     string
	once     sync.Once
	signaled chan struct{}
}

// NewSignal returns a signal of an event that has not happened.
func NewSignal(name string) *Signal { return &Signal{name: name, signaled: make(chan struct{})} }

// Name is what upstream calls the event.
func (s *Signal) Name() string { return s.name }

// Signal says that the event has happened. Further calls do nothing.
func (s *Signal) Signal() {
	s.once.Do(func() {
		close(s.signaled)
		klog.V(1).InfoS("Lifecycle event", "name", s.name)
	})
}

// Signaled is closed when the event has happened.
func (s *Signal) Signaled() <-chan struct{} { return s.signaled }

// HasHappened reports whether Signal was called.
func (s *Signal) HasHappened() bool {
	select {
	case <-s.signaled:
		return true
	default:
		return false
	}
}

// Signals are the events of a server's life.
type Signals struct {
	// MuxAndDiscoveryComplete: every route is there; an unknown path is a 404.
	MuxAndDiscoveryComplete *Signal
	// HasBeenReady: all checks of /readyz have passed at once.
	HasBeenReady *Signal
	// ShutdownInitiated: a signal to stop was received. /readyz fails from now on.
	ShutdownInitiated *Signal
	// AfterShutdownDelayDuration: load balancers have had time to notice.
	AfterShutdownDelayDuration *Signal
	// PreShutdownHooksStopped: this server has left the kubernetes Service, and
	// released the leases that it held.
	PreShutdownHooksStopped *Signal
	// NotAcceptingNewRequest: a request that comes now is refused, and watches end.
	NotAcceptingNewRequest *Signal
	// NonLongRunningRequestsDrained: requests that have an end have been answered.
	NonLongRunningRequestsDrained *Signal
	// WatchesDrained: watches have ended, or their grace period is over.
	WatchesDrained *Signal
	// InFlightRequestsDrained is both of the above.
	InFlightRequestsDrained *Signal
	// HTTPServerStoppedListening: new connections are refused.
	HTTPServerStoppedListening *Signal
	// ConnectionsClosed: nothing is served any more.
	ConnectionsClosed *Signal
}

// NewSignals returns signals of events that have not happened.
func NewSignals() *Signals {
	return &Signals{
		MuxAndDiscoveryComplete:       NewSignal("MuxAndDiscoveryComplete"),
		HasBeenReady:                  NewSignal("HasBeenReady"),
		ShutdownInitiated:             NewSignal("ShutdownInitiated"),
		AfterShutdownDelayDuration:    NewSignal("AfterShutdownDelayDuration"),
		PreShutdownHooksStopped:       NewSignal("PreShutdownHooksStopped"),
		NotAcceptingNewRequest:        NewSignal("NotAcceptingNewRequest"),
		NonLongRunningRequestsDrained: NewSignal("NonLongRunningRequestsDrained"),
		WatchesDrained:                NewSignal("WatchesDrained"),
		InFlightRequestsDrained:       NewSignal("InFlightRequestsDrained"),
		HTTPServerStoppedListening:    NewSignal("HTTPServerStoppedListening"),
		ConnectionsClosed:             NewSignal("ConnectionsClosed"),
	}
}

// Step is one part of a shutdown.
type Step struct {
	// Done is signaled when Do has returned.
	Done *Signal
	// After has been signaled before Do is called.
	After []*Signal
	// Do is what there is to do; nil for nothing.
	Do func()
}

// Actions is what a server does in the steps of its shutdown. Each has its own
// bound in time.
type Actions struct {
	// Delay waits for --shutdown-delay-duration.
	Delay func()
	// PreShutdown leaves the kubernetes Service and gives leases back.
	PreShutdown func()
	// DrainRequests waits for requests that are not long-running.
	DrainRequests func()
	// DrainWatches waits for watches, which NotAcceptingNewRequest ends.
	DrainWatches func()
	// StopListening closes the listeners.
	StopListening func()
	// CloseConnections ends what is still served.
	CloseConnections func()
}

// Shutdown is the order in which a server stops. With sendRetryAfter it keeps
// listening while it drains, to tell those who come to try again later.
func (s *Signals) Shutdown(a Actions, sendRetryAfter bool) []Step {
	stopListening := s.NotAcceptingNewRequest
	if sendRetryAfter {
		stopListening = s.InFlightRequestsDrained
	}
	return []Step{
		{s.AfterShutdownDelayDuration, []*Signal{s.ShutdownInitiated}, a.Delay},
		{s.PreShutdownHooksStopped, []*Signal{s.ShutdownInitiated}, a.PreShutdown},
		{s.NotAcceptingNewRequest, []*Signal{s.AfterShutdownDelayDuration, s.PreShutdownHooksStopped}, nil},
		{s.NonLongRunningRequestsDrained, []*Signal{s.NotAcceptingNewRequest}, a.DrainRequests},
		{s.WatchesDrained, []*Signal{s.NotAcceptingNewRequest}, a.DrainWatches},
		{s.InFlightRequestsDrained, []*Signal{s.NonLongRunningRequestsDrained, s.WatchesDrained}, nil},
		{s.HTTPServerStoppedListening, []*Signal{stopListening}, a.StopListening},
		{s.ConnectionsClosed, []*Signal{s.InFlightRequestsDrained, s.HTTPServerStoppedListening}, a.CloseConnections},
	}
}

// Run carries the steps out, each when what it comes after has been signaled, and
// returns when all are done. It panics if a step waits for a signal that has not happened
// and that no step before it gives: Run would never return.
func Run(steps []Step) {
	given := map[*Signal]bool{}
	for _, step := range steps {
		for _, signal := range step.After {
			if !given[signal] && !signal.HasHappened() {
				panic(fmt.Sprintf("lifecycle: %s waits for %s, which no step before it gives", step.Done.name, signal.name))
			}
		}
		given[step.Done] = true
	}
	var running sync.WaitGroup
	for _, step := range steps {
		running.Go(func() {
			for _, signal := range step.After {
				<-signal.Signaled()
			}
			if step.Do != nil {
				step.Do()
			}
			step.Done.Signal()
		})
	}
	running.Wait()
}
