package process

import (
	"context"
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

// Component is a part of a server that runs in a goroutine of its own.
type Component struct {
	Name string
	// Run runs the component until its context ends. If it returns an error, the server
	// fails. The server also fails if Run returns before its context ends, unless
	// MayEnd is set.
	Run    func(context.Context) error
	MayEnd bool
}

// Stage is the components of a server that start together and stop together.
type Stage struct {
	Name       string
	Components []Component
	// Prepare, if not nil, is called before the components start, with their context.
	Prepare func(context.Context)
	// Await, if not nil, is called after the components have started, with the context
	// of Start. The next stage starts after Await has returned nil.
	Await func(context.Context) error
	// Release, if not nil, is called after the components' context has ended, before
	// Stop waits for them.
	Release func()
}

// Stages starts stages one after another and stops them in reverse order.
//
// Invariant: while a stage runs, all stages that were started before it run. Stop keeps
// it. The caller of StopStage keeps it by naming a stage that no later stage relies on.
type Stages struct {
	// failed is called with the error of each component that ends too early.
	failed  func(error)
	running []*runningStage
}

type runningStage struct {
	Stage
	cancel     context.CancelFunc
	components sync.WaitGroup
	stop       sync.Once
}

// NewStages returns Stages without a stage. failed is called when a component fails.
func NewStages(failed func(error)) *Stages { return &Stages{failed: failed} }

// Start starts a stage. Its components run until Stop or StopStage; they do not end
// with ctx.
func (s *Stages) Start(ctx context.Context, stage Stage) error {
	r := &runningStage{Stage: stage}
	var own context.Context
	own, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.running = append(s.running, r)
	if stage.Prepare != nil {
		stage.Prepare(own)
	}
	for _, c := range stage.Components {
		r.components.Go(func() { s.run(own, c) })
	}
	if stage.Await != nil {
		return stage.Await(ctx)
	}
	return nil
}

func (s *Stages) run(ctx context.Context, c Component) {
	err := c.Run(ctx)
	switch {
	case err != nil:
		s.failed(fmt.Errorf("%s: %w", c.Name, err))
	case ctx.Err() == nil && !c.MayEnd:
		s.failed(fmt.Errorf("%s ended before it was stopped", c.Name))
	}
}

// StopStage ends one stage's components and waits for them. It may be called
// concurrently with Stop. It does nothing for a stage that is not running.
func (s *Stages) StopStage(name string) {
	for _, r := range s.running {
		if r.Name == name {
			r.end()
		}
	}
}

// Stop ends all stages, the last one first. It waits for each stage before it ends the
// previous one.
func (s *Stages) Stop() {
	for i := len(s.running) - 1; i >= 0; i-- {
		s.running[i].end()
	}
}

// end ends the stage if nobody else has, and returns when the stage has ended.
func (r *runningStage) end() {
	r.stop.Do(func() {
		r.cancel()
		if r.Release != nil {
			r.Release()
		}
		r.components.Wait()
	})
}
