package apiserver

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/process/health"
	"byre/apiserver/process/lifecycle"
	"byre/apiserver/process/systemd"
)

// Run serves until ctx ends or a component fails, and then stops in order. It returns
// nil when ctx ended, and otherwise the component's error.
func (s *Server) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer closeTracer(s.network.tracer)
	defer s.storage.close()

	stages := lifecycle.NewStages(fail)
	defer stages.Stop()
	for _, stage := range s.stages() {
		if err := stages.Start(ctx, stage); err != nil {
			return err
		}
	}
	klog.InfoS("Serving", "address", s.Address().String())

	<-ctx.Done()
	s.shutdown(stages)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// after returns a function that calls run once done is closed.
func after(done <-chan struct{}, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-done:
			return run(ctx)
		}
	}
}

// readyInterval is how often awaitChecks runs the checks. Controllers and systemd's
// notification wait for it.
const readyInterval = 20 * time.Millisecond

// awaitChecks returns true once all checks pass, and false if ctx ends before.
func awaitChecks(ctx context.Context, checks []health.Checker) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !health.AllPass(ctx, checks) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// awaitReady signals HasBeenReady as soon as the start is done, whether or not a client asks for
// it. It does not wait until the database accepts all writes (health.Checks.Writes).
func (s *Server) awaitReady(ctx context.Context) error {
	if !awaitChecks(ctx, s.chain.startChecks) {
		return nil
	}
	s.signals.HasBeenReady.Signal()
	systemd.NotifyReady("Serving on " + s.Address().String())
	klog.InfoS("Ready", "address", s.Address().String(), "kubeconfig", s.options.Kubeconfig())
	return nil
}
