package apiserver

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/health"
	"byre/apiserver/lifecycle"
	"byre/apiserver/systemd"
)

// Run serves until ctx ends, then stops in order. It returns nil after a stop
// that was asked for, and otherwise what went wrong.
func (s *Server) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer closeTracer(s.tracer)
	defer s.core.close()

	stages := lifecycle.NewStages(fail)
	defer stages.Stop()
	shutdown := newShutdown(s, stages)
	defer shutdown.wait()
	for _, stage := range s.stages(shutdown.closeListeners) {
		if err := stages.Start(ctx, stage); err != nil {
			return err
		}
	}
	klog.InfoS("Serving", "address", s.listener.Addr().String())

	<-ctx.Done()
	shutdown.run()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// runControlPlane waits until there is the namespace that it writes to.
func (s *Server) runControlPlane(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.bootstrap.Done():
		return s.controlplane.Run(ctx)
	}
}

// runControllers waits until the server is ready: its controllers must not delay that.
func (s *Server) runControllers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.signals.HasBeenReady.Signaled():
		return s.controllers.Run(ctx)
	}
}

// runWatchdog serves systemd's watchdog, which waits for READY=1 too.
func (s *Server) runWatchdog(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.signals.HasBeenReady.Signaled():
		return systemd.RunWatchdog(ctx, s.checkLive)
	}
}

// checkLive asks this server's /livez, through all filters. It leaves the database out:
// while that is away, reads that may be stale go on, and a restart would end them.
func (s *Server) checkLive(ctx context.Context) error {
	return s.clients.kube.Discovery().RESTClient().Get().AbsPath("/livez").Param("exclude", "etcd").Do(ctx).Error()
}

// readyInterval is how often awaitReady runs the checks; upstream's value.
const readyInterval = 100 * time.Millisecond

// awaitReady signals HasBeenReady as soon as all checks of /readyz pass, whether or not
// a client asks for them.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !health.AllPass(ctx, s.readyChecks) {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	s.signals.HasBeenReady.Signal()
	systemd.NotifyReady("Serving on " + s.listener.Addr().String())
	klog.InfoS("Ready", "address", s.listener.Addr().String(), "kubeconfig", s.config.Options.Kubeconfig())
	return nil
}
