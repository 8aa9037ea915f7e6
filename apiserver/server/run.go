package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/process"

	"byre/apiserver/bootstrap"
)

// Run serves until ctx ends or a component fails, and then stops in order. It returns
// nil when ctx ended, and otherwise the component's error.
func (s *Server) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer closeTracer(s.network.tracer)
	defer s.storage.close()

	stages := process.NewStages(fail)
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
func awaitChecks(ctx context.Context, checks []process.HealthChecker) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !process.AllPass(ctx, checks) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// awaitReady signals HasBeenReady as soon as the start is done, whether or not a client asks for
// it. It does not wait until the database accepts all writes (process.HealthChecks.Writes).
func (s *Server) awaitReady(ctx context.Context) error {
	if !awaitChecks(ctx, s.chain.startChecks) {
		return nil
	}
	s.signals.HasBeenReady.Signal()
	process.NotifyReady("Serving on " + s.Address().String())
	klog.InfoS("Ready", "address", s.Address().String(), "kubeconfig", s.options.Kubeconfig())
	return nil
}

// leaveTimeout bounds how long a shutdown waits until this server's entry in the
// kubernetes Service is removed. After this time the entry expires by itself.
const leaveTimeout = bootstrap.LeaseTTL

// shutdown stops serving, in the order that package lifecycle gives. The stages other than
// membership and serving still run when it returns.
func (s *Server) shutdown(stages *process.Stages) {
	klog.InfoS("Stopping", "delay", s.options.Generic.ShutdownDelayDuration)
	process.NotifyStopping()
	var leaving sync.WaitGroup
	s.signals.Shutdown(process.Actions{
		Delay:            func() { time.Sleep(s.options.Generic.ShutdownDelayDuration) },
		PreShutdown:      func() { leave(stages, &leaving) },
		DrainRequests:    s.http.drainRequests,
		DrainWatches:     s.http.drainWatches,
		StopListening:    func() { stages.StopStage(servingStage) },
		CloseConnections: s.http.closeConnections,
	}, s.options.Generic.ShutdownSendRetryAfter)
	klog.InfoS("Drained")
	leaving.Wait()
}

// leave removes this server from the endpoints of the kubernetes Service and releases
// the controllers' Lease. If the database does not answer in time, both expire by themselves;
// leaving then still counts the goroutine that waits for it.
func leave(stages *process.Stages, leaving *sync.WaitGroup) {
	left := make(chan struct{})
	leaving.Go(func() {
		defer close(left)
		stages.StopStage(membershipStage)
	})
	select {
	case <-left:
	case <-time.After(leaveTimeout):
		klog.InfoS("Could not leave the kubernetes Service in time; the entry expires", "timeout", leaveTimeout)
	}
}
