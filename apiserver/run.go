package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/health"
)

// Run serves until ctx ends, then stops in order. It returns nil after a stop
// that was asked for, and otherwise what went wrong.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &running{Server: s, failed: func(err error) { cancel(err) }}
	defer closeTracer(s.tracer)
	defer s.core.close()

	r.begin(ctx, &r.data)
	defer r.data.stop()
	r.data.run("store", s.core.store.Run)
	r.begin(ctx, &r.feed)
	defer r.feed.stop()
	r.feed.run("feed", s.core.feed.Run)
	if err := s.core.ensureFirstRevision(ctx); err != nil {
		return err
	}
	r.startBase(ctx)
	defer r.stopBase()
	r.startWork(ctx)
	defer r.work.stop()
	r.startMembership(ctx)
	defer r.leaving.Wait()
	defer r.membership.stop()
	r.startServing(ctx)

	<-ctx.Done()
	r.shutDown()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// running is a Server with its stages, in the order of their start.
type running struct {
	*Server
	failed func(error)
	// data and feed are the store's; base is what requests rely on, work what
	// makes requests of its own. membership is what the other replicas must know to
	// have ended, and so ends before the others. serving is the listener.
	data, feed, base, work, membership, serving *stage
	// leaving and closing count what a shutdown waits for with a bound in time: the
	// end of membership, of requests and of connections.
	leaving, closing sync.WaitGroup
}

func (r *running) begin(ctx context.Context, s **stage) { *s = newStage(ctx, r.failed) }

// startBase starts what requests rely on.
func (r *running) startBase(ctx context.Context) {
	r.begin(ctx, &r.base)
	r.base.run("audit", r.audit.Run)
	r.base.run("certificates", func(ctx context.Context) error {
		r.certs.run(ctx)
		return nil
	})
	r.base.run("authentication and authorization", r.auth.Run)
	r.base.run("admission", r.admission.Run)
	r.base.run("priority and fairness", r.flow.Run)
	if r.encryption.reload != nil {
		r.base.run("encryption configuration", func(ctx context.Context) error {
			r.encryption.reload.Run(ctx)
			return nil
		})
	}
	if r.config.Options.Debug.SocketPath != "" {
		r.base.run("debug socket", r.config.Options.Debug.serveSocket)
	}
	r.signals.MuxAndDiscoveryComplete.Signal()
	r.clients.informers.StartWithContext(r.base.ctx)
	r.base.run("built-in groups", r.builtin.Run)
}

// stopBase ends the base. The server's own requests end with it: what is left
// of them are watches of informers that nobody reads any more.
func (r *running) stopBase() {
	r.base.cancel()
	r.endBase()
	r.transport.Close()
	r.transport.Wait()
	r.clients.informers.Shutdown()
	r.base.stop()
}

// startWork starts what makes requests of its own.
func (r *running) startWork(ctx context.Context) {
	r.begin(ctx, &r.work)
	r.work.run("bootstrap objects", r.bootstrap.Run)
	r.work.once("readiness", r.awaitReady)
	r.work.once("release of start memory", r.releaseStartMemory)
	for _, server := range r.chain {
		r.work.run("server of the delegation chain", server.Run)
	}
	if !r.core.database.Shared {
		r.work.run("controllers", r.runControllers)
	}
}

// startMembership starts what this server is for the cluster: one of the endpoints
// of the kubernetes Service, a server with an identity Lease, and, where there are
// other replicas that can take over, a candidate for running the controllers.
func (r *running) startMembership(ctx context.Context) {
	r.begin(ctx, &r.membership)
	r.membership.run("endpoint of the kubernetes Service", r.bootstrap.PublishEndpoints)
	r.membership.run("control plane", r.runControlPlane)
	if r.core.database.Shared {
		r.membership.run("controllers", r.runControllers)
	}
}

// startServing lets the requests in that have queued at the listener.
func (r *running) startServing(ctx context.Context) {
	r.begin(ctx, &r.serving)
	klog.InfoS("Serving", "address", r.listener.Addr().String())
	r.serving.run("listener", func(context.Context) error { return served(r.http.ServeTLS(r.listener, "", "")) })
	if r.insecure != nil {
		r.serving.run("insecure listener", r.serveInsecure)
	}
}

// served is how serving ended: a shutdown is no error.
func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// runControlPlane waits until there is the namespace that it writes to.
func (r *running) runControlPlane(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.bootstrap.Done():
		return r.controlplane.Run(ctx)
	}
}

// runControllers waits until the server is ready: its controllers must not hold
// that up.
func (r *running) runControllers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.signals.HasBeenReady.Signaled():
		return r.controllers.Run(ctx)
	}
}

// readyInterval is how often awaitReady looks; upstream's.
const readyInterval = 100 * time.Millisecond

// awaitReady signals HasBeenReady when all checks of /readyz pass, whether or not
// somebody asks.
func (r *running) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !health.AllPass(ctx, r.readyChecks) {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	r.signals.HasBeenReady.Signal()
	klog.InfoS("Ready", "address", r.listener.Addr().String(), "kubeconfig", r.config.kubeconfig())
	return nil
}

// settleDelay lets the controllers make their first round, which is the last
// part of a start.
const settleDelay = 5 * time.Second

// lookInterval is how often releaseStartMemory looks whether the server is busy.
const lookInterval = 500 * time.Millisecond

// releaseStartMemory gives back the memory that only the start needed, and then, whenever the
// server has been busy and is no more, what that needed. While it is busy it has the
// garbage collector run less often.
func (r *running) releaseStartMemory(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.signals.HasBeenReady.Signaled():
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(settleDelay):
	}
	if err := releaseStart(); err != nil {
		klog.V(2).InfoS("Memory of the start was not given back", "err", err)
	}
	garbage := collector{usualPercent}
	var work workload
	work.done(allocated())
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch work.look(allocated()) {
		case busy:
			garbage.set(busyPercent)
		case quiet:
			garbage.set(usualPercent)
		case over:
			garbage.set(usualPercent)
			debug.FreeOSMemory()
			work.done(allocated())
		case usual:
		}
	}
}
