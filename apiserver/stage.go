package apiserver

import (
	"context"
	"fmt"
	"sync"
)

// A stage is the parts of a server that stop together. Stages are stopped in
// the reverse order of their start, so that nothing loses what it stands on.
type stage struct {
	ctx    context.Context
	cancel context.CancelFunc
	parts  sync.WaitGroup
	// failed is told of the first part that ends before it was told to.
	failed func(error)
}

// newStage makes a stage that goes on when ctx ends: only stop ends it.
func newStage(ctx context.Context, failed func(error)) *stage {
	s := &stage{failed: failed}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// run starts a part. One that returns an error fails the server, and so does
// one that returns before its stage is stopped.
func (s *stage) run(name string, part func(context.Context) error) {
	s.parts.Go(func() {
		err := part(s.ctx)
		switch {
		case err != nil:
			s.failed(fmt.Errorf("%s: %w", name, err))
		case s.ctx.Err() == nil:
			s.failed(fmt.Errorf("%s ended by itself", name))
		}
	})
}

// once starts a part that is expected to end.
func (s *stage) once(name string, part func(context.Context) error) {
	s.parts.Go(func() {
		if err := part(s.ctx); err != nil && s.ctx.Err() == nil {
			s.failed(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// stop ends the parts and joins them.
func (s *stage) stop() {
	s.cancel()
	s.parts.Wait()
}
