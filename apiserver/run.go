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
)

// closeTimeout is how long a stop waits for connections after their requests
// have ended.
const closeTimeout = 5 * time.Second

// Run serves until ctx ends, then stops in order. It returns nil after a stop
// that was asked for, and otherwise what went wrong.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &running{Server: s, failed: func(err error) { cancel(err) }}
	defer s.core.close()

	r.begin(&r.data, ctx)
	defer r.data.stop()
	r.data.run("store", s.core.store.Run)
	r.begin(&r.feed, ctx)
	defer r.feed.stop()
	r.feed.run("feed", s.core.feed.Run)
	if err := s.core.found(ctx); err != nil {
		return err
	}
	r.startBase(ctx)
	defer r.stopBase()
	r.begin(&r.work, ctx)
	defer r.work.stop()
	r.startServing(ctx)
	r.work.run("bootstrap objects", s.bootstrap.Run)
	r.work.once("allocations", r.watchAllocations)
	r.work.run("controllers", r.runControllers)
	r.work.once("settling", r.settle)
	for _, n := range s.neighbours {
		if n.Run != nil {
			r.work.run("neighbour", n.Run)
		}
	}

	<-ctx.Done()
	r.drain()
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
	// makes requests of its own; serving is the listener.
	data, feed, base, work, serving *stage
}

func (r *running) begin(s **stage, ctx context.Context) { *s = newStage(ctx, r.failed) }

// startBase starts what requests rely on.
func (r *running) startBase(ctx context.Context) {
	r.begin(&r.base, ctx)
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
	close(r.installed)
	r.Informers.StartWithContext(r.base.ctx)
	r.base.run("built-in groups", r.builtin.Run)
}

// stopBase ends the base. The server's own requests end with it: what is left
// of them are watches of informers that nobody reads any more.
func (r *running) stopBase() {
	r.base.cancel()
	r.endBase()
	r.transport.Close()
	r.transport.Wait()
	r.Informers.Shutdown()
	r.base.stop()
}

// startServing lets the requests in that have queued at the listener.
func (r *running) startServing(ctx context.Context) {
	r.begin(&r.serving, ctx)
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

// runControllers waits until the server is ready: its controllers must not hold
// that up.
func (r *running) runControllers(ctx context.Context) error {
	if !r.waitStarted(ctx) {
		return nil
	}
	return r.controllers.Run(ctx)
}

// waitStarted waits until all that /readyz waits for has been done, and returns
// false if ctx ends before.
func (r *running) waitStarted(ctx context.Context) bool {
	for _, done := range []<-chan struct{}{r.builtin.Repaired(), r.bootstrap.Made()} {
		select {
		case <-ctx.Done():
			return false
		case <-done:
		}
	}
	for _, synced := range r.Informers.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return false
		}
	}
	return true
}

// settleDelay lets the controllers make their first round, which is the last
// part of a start.
const settleDelay = 5 * time.Second

// lookInterval is how often settle looks whether the server is busy.
const lookInterval = 500 * time.Millisecond

// settle gives back the memory that only the start needed, and then, whenever the
// server has been busy and is no more, what that needed. While it is busy it has the
// garbage collector run less often.
func (r *running) settle(ctx context.Context) error {
	if !r.waitStarted(ctx) {
		return nil
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

// watchAllocations opens the gate that /readyz waits for.
func (r *running) watchAllocations(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.builtin.Repaired():
		r.allocated.Open()
	}
	return nil
}

// drain stops serving: not ready, then no new requests, then those in flight
// are waited for, then watches end and connections close.
func (r *running) drain() {
	klog.InfoS("Stopping", "delay", r.config.Options.ShutdownDelay)
	close(r.stopping)
	time.Sleep(r.config.Options.ShutdownDelay)
	close(r.draining)

	var closing sync.WaitGroup
	deadline, cancel := context.WithTimeout(context.Background(), r.config.Options.Filters.RequestTimeout+closeTimeout)
	defer cancel()
	r.serving.cancel()
	// The listeners close at once, and clients are told to go elsewhere; what is
	// in flight goes on. Unless those who still come are to be told in words:
	// then they close after what is in flight.
	shutdown := func() {
		for _, server := range []*http.Server{r.http, r.plain} {
			if server != nil {
				closing.Go(func() { closeServer(deadline, server) })
			}
		}
	}
	if !r.config.Options.Filters.ShutdownSendRetryAfter {
		shutdown()
	}
	requests := make(chan struct{})
	closing.Go(func() {
		defer close(requests)
		r.requests.Wait()
	})
	select {
	case <-requests:
	case <-deadline.Done():
	}
	if r.config.Options.Filters.ShutdownSendRetryAfter {
		shutdown()
	}
	r.endWatches()
	closing.Wait()
	r.serving.stop()
	klog.InfoS("Drained")
}

// closeServer waits until ctx ends for connections to become idle.
func closeServer(ctx context.Context, server *http.Server) {
	if err := server.Shutdown(ctx); err != nil {
		klog.V(2).InfoS("Connections were cut", "err", err)
		_ = server.Close() // what it can't close is closed with the process
	}
}

// closeListener closes a listener that nobody serves; nil is none.
func closeListener(listener net.Listener) error {
	if listener == nil {
		return nil
	}
	return listener.Close()
}
