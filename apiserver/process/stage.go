package process

import (
	"context"
	"fmt"
	"sync"
)

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
