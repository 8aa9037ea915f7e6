package process

import (
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

// Signal records that the event has happened. Further calls do nothing.
func (s *Signal) Signal() {
	s.once.Do(func() {
		close(s.signaled)
		logEvent(s.name)
	})
}

// Signaled returns a channel that is closed when the event has happened.
func (s *Signal) Signaled() <-chan struct{} { return s.signaled }

// Signals are the events of a server's life that its parts wait for.
type Signals struct {
	// MuxAndDiscoveryComplete: every route is installed. From now on an unknown path is
	// answered with 404.
	MuxAndDiscoveryComplete *Signal
	// HasBeenReady: all checks of /readyz but those of writes have passed at once.
	HasBeenReady *Signal
	// ShutdownInitiated: the server was told to stop. /readyz fails from now on.
	ShutdownInitiated *Signal
	// NotAcceptingNewRequest: new requests are refused, and watches end.
	NotAcceptingNewRequest *Signal
}

// NewSignals returns signals of events that have not happened.
func NewSignals() *Signals {
	return &Signals{
		MuxAndDiscoveryComplete: NewSignal("MuxAndDiscoveryComplete"),
		HasBeenReady:            NewSignal("HasBeenReady"),
		ShutdownInitiated:       NewSignal("ShutdownInitiated"),
		NotAcceptingNewRequest:  NewSignal("NotAcceptingNewRequest"),
	}
}

// Actions are what a server does in its shutdown. Each action ends within a time that it
// bounds itself.
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

// Shutdown stops a server, and returns when no request is served any more. With
// sendRetryAfter the server keeps listening while it drains, to answer new requests with
// Retry-After.
func (s *Signals) Shutdown(a Actions, sendRetryAfter bool) {
	s.ShutdownInitiated.Signal()
	together(
		step("AfterShutdownDelayDuration", a.Delay), // load balancers have noticed that /readyz fails
		step("PreShutdownHooksStopped", a.PreShutdown),
	)
	s.NotAcceptingNewRequest.Signal()
	drain := step("InFlightRequestsDrained", func() {
		together(step("NonLongRunningRequestsDrained", a.DrainRequests), step("WatchesDrained", a.DrainWatches))
	})
	stopListening := step("HTTPServerStoppedListening", a.StopListening)
	if sendRetryAfter {
		drain()
		stopListening()
	} else {
		together(drain, stopListening)
	}
	step("ConnectionsClosed", a.CloseConnections)()
}

// step logs the event after the work.
func step(event string, work func()) func() {
	return func() {
		work()
		logEvent(event)
	}
}

// together runs functions concurrently, and returns when all have returned.
func together(all ...func()) {
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(f)
	}
	running.Wait()
}

func logEvent(name string) { klog.V(1).InfoS("Lifecycle event", "name", name) }
