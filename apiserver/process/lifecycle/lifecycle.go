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

// Name is the name of the event in upstream.
func (s *Signal) Name() string { return s.name }

// Signal records that the event has happened. Further calls do nothing.
func (s *Signal) Signal() {
	s.once.Do(func() {
		close(s.signaled)
		klog.V(1).InfoS("Lifecycle event", "name", s.name)
	})
}

// Signaled returns a channel that is closed when the event has happened.
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
	// MuxAndDiscoveryComplete: every route is installed. From now on an unknown path is
	// answered with 404.
	MuxAndDiscoveryComplete *Signal
	// HasBeenReady: all checks of /readyz but those of writes have passed at once.
	HasBeenReady *Signal
	// ShutdownInitiated: the server was told to stop. /readyz fails from now on.
	ShutdownInitiated *Signal
	// AfterShutdownDelayDuration: load balancers have had time to notice that /readyz
	// fails.
	AfterShutdownDelayDuration *Signal
	// PreShutdownHooksStopped: this server has left the kubernetes Service, and
	// released the leases that it held.
	PreShutdownHooksStopped *Signal
	// NotAcceptingNewRequest: new requests are refused, and watches end.
	NotAcceptingNewRequest *Signal
	// NonLongRunningRequestsDrained: the requests that are not long-running have been
	// answered.
	NonLongRunningRequestsDrained *Signal
	// WatchesDrained: watches have ended, or their grace period is over.
	WatchesDrained *Signal
	// InFlightRequestsDrained: NonLongRunningRequestsDrained and WatchesDrained have
	// happened.
	InFlightRequestsDrained *Signal
	// HTTPServerStoppedListening: new connections are refused.
	HTTPServerStoppedListening *Signal
	// ConnectionsClosed: no request is served any more.
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
	// After are the signals that must be signaled before Do is called.
	After []*Signal
	// Do is the work of the step; nil means none.
	Do func()
}

// Actions are what a server does in the steps of its shutdown. Each action ends within
// a time that it bounds itself.
type Actions struct {
	// Delay waits for --shutdown-delay-duration.
	Delay func()
	// PreShutdown removes the server from the kubernetes Service and releases its
	// Leases.
	PreShutdown func()
	// DrainRequests waits for requests that are not long-running.
	DrainRequests func()
	// DrainWatches waits for watches, which NotAcceptingNewRequest ends.
	DrainWatches func()
	// StopListening closes the listeners.
	StopListening func()
	// CloseConnections ends the requests that are still served, and closes the
	// connections.
	CloseConnections func()
}

// Shutdown returns the steps in which a server stops. With sendRetryAfter the server
// keeps listening while it drains, to answer new requests with Retry-After.
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

// Run runs the steps, each as soon as its After signals have been sent, and returns
// when all are done. It panics if a step waits for a signal that has not happened and
// that no earlier step sends, because it would never return.
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
