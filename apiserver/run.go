package apiserver

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/access/auth"
	"byre/apiserver/process/health"
	"byre/apiserver/process/lifecycle"
	"byre/apiserver/process/systemd"
)

// Run serves until ctx ends or a component fails, and then stops in order. It returns
// nil when ctx ended, and otherwise the component's error.
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

// runControlPlane runs the control plane once the bootstrap component has created the
// namespace that the control plane writes to.
func (s *Server) runControlPlane(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.bootstrap.Done():
		return s.controlplane.Run(ctx)
	}
}

// runControllers runs the controllers once the server is ready, so that they do not
// delay the start.
func (s *Server) runControllers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.signals.HasBeenReady.Signaled():
		return s.controllers.Run(ctx)
	}
}

// recordInterval is the time between two tries to record the keys.
const recordInterval = 10 * time.Second

// recordTrustedKeys records the server's keys in the database once the server has started and
// can encrypt. It fails if another server has recorded keys meanwhile that this one does not
// trust. With --adopt it also deletes the record that the database is a fork. The server is ready after the first try: whoever has seen it ready finds its keys
// recorded, unless the database takes no writes.
func (s *Server) recordTrustedKeys(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.bootstrap.Done():
	}
	if !awaitChecks(ctx, s.encryption.checks) {
		return nil
	}
	for {
		err := s.trust.Record(ctx, s.core.store)
		var untrusted *auth.UntrustedKeyError
		if errors.As(err, &untrusted) {
			return err
		}
		if err == nil && s.config.Options.Store.Adopt {
			err = s.core.adopt(ctx)
		}
		s.triedToRecordKeys.Signal()
		if err == nil {
			return nil
		}
		klog.V(2).InfoS("The keys of this server are not recorded yet", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recordInterval):
		}
	}
}

// runWatchdog serves systemd's watchdog once the server is ready: systemd, too, starts
// its watchdog at READY=1.
func (s *Server) runWatchdog(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.signals.HasBeenReady.Signaled():
		return systemd.RunWatchdog(ctx, s.checkLive)
	}
}

// checkLive requests this server's /livez, through all filters. It excludes the check
// of the database: while the database is away, the server still answers reads from its
// watch cache, and a restart would end that.
func (s *Server) checkLive(ctx context.Context) error {
	return s.clients.kube.Discovery().RESTClient().Get().AbsPath("/livez").Param("exclude", "etcd").Do(ctx).Error()
}

// informersPatience bounds how long runBootstrap waits for the informers.
const informersPatience = time.Second

// runBootstrap creates the bootstrap objects. It waits for the informers first, since an
// admission plugin that a write finds without its objects looks for them only every 0.1 s.
func (s *Server) runBootstrap(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, informersPatience)
	s.clients.informers.WaitForCacheSyncWithContext(waiting)
	cancel()
	return s.bootstrap.Run(ctx)
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
	if !awaitChecks(ctx, s.startChecks) {
		return nil
	}
	s.signals.HasBeenReady.Signal()
	systemd.NotifyReady("Serving on " + s.listener.Addr().String())
	klog.InfoS("Ready", "address", s.listener.Addr().String(), "kubeconfig", s.config.Options.Kubeconfig())
	return nil
}
