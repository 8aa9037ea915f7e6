package apiserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/klog/v2"

	"byre/apiserver/lifecycle"
	"byre/apiserver/systemd"
)

const (
	// closeTimeout is how long a shutdown waits for connections whose requests
	// have ended; upstream's value with --shutdown-send-retry-after is 2 s, which
	// a client on a slow line may need to receive an answer that is all sent.
	closeTimeout = 5 * time.Second
	// leaveTimeout bounds how long a shutdown waits for the server to leave the
	// kubernetes Service. After as long its entry has expired.
	leaveTimeout = replicaTTL
	// minWatchesPerSecond is how many watches end in a second at least while
	// watches are drained; upstream's value.
	minWatchesPerSecond = 200
)

// shutdown does what the steps of lifecycle.Signals.Shutdown stand for.
type shutdown struct {
	server *Server
	stages *lifecycle.Stages
	// leaving counts the end of membership; closing counts requests and connections.
	// Steps wait for either with a bound in time.
	leaving, closing sync.WaitGroup
}

func newShutdown(s *Server, stages *lifecycle.Stages) *shutdown {
	return &shutdown{server: s, stages: stages}
}

// run stops serving, in the order of package lifecycle. Other stages still run when it
// returns.
func (d *shutdown) run() {
	o := d.server.config.Options
	klog.InfoS("Stopping", "delay", o.ShutdownDelay)
	systemd.NotifyStopping()
	d.server.signals.ShutdownInitiated.Signal()
	lifecycle.Run(d.server.signals.Shutdown(lifecycle.Actions{
		Delay:            func() { time.Sleep(o.ShutdownDelay) },
		PreShutdown:      d.leave,
		DrainRequests:    d.drainRequests,
		DrainWatches:     d.drainWatches,
		StopListening:    func() { d.stages.StopStage(servingStage) },
		CloseConnections: d.closeConnections,
	}, o.Filters.ShutdownSendRetryAfter))
	klog.InfoS("Drained")
}

// wait joins what run's steps did not wait for.
func (d *shutdown) wait() { d.leaving.Wait() }

// leave takes this server out of the kubernetes Service and gives the controllers'
// lease back. If the database doesn't answer, both expire.
func (d *shutdown) leave() {
	left := make(chan struct{})
	d.leaving.Go(func() {
		defer close(left)
		d.stages.StopStage(membershipStage)
	})
	select {
	case <-left:
	case <-time.After(leaveTimeout):
		klog.InfoS("Could not leave the kubernetes Service in time; the entry expires", "timeout", leaveTimeout)
	}
}

// drainRequests waits for requests that are not long-running. From its start such a
// request on a connection that is still open is refused (filters.Chain).
func (d *shutdown) drainRequests() {
	drained := make(chan struct{})
	d.closing.Go(func() {
		defer close(drained)
		d.server.requests.Wait()
	})
	select {
	case <-drained:
	case <-time.After(d.server.config.Options.Filters.RequestTimeout + closeTimeout):
		klog.InfoS("Requests run for longer than their timeout; their connections will be closed")
	}
}

// drainWatches waits until watches have ended, spread over the grace period so
// that their clients don't come to the other replicas all at once. Without a grace
// period closeConnections ends them.
func (d *shutdown) drainWatches() {
	grace := d.server.config.Options.Filters.ShutdownWatchTerminationGracePeriod
	if grace <= 0 {
		return
	}
	before, after, err := d.server.watches.Wait(func(count int) (waitgroup.RateLimiter, context.Context, context.CancelFunc) {
		perSecond := max(float64(count)/grace.Seconds(), minWatchesPerSecond)
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		return rate.NewLimiter(rate.Limit(perSecond), 1), ctx, cancel
	})
	klog.V(1).InfoS("Watches have ended", "before", before, "after", after, "err", err)
}

// closeListeners closes the listeners, sends GOAWAY to HTTP/2 clients, and has closing
// wait for the connections.
func (d *shutdown) closeListeners() {
	o := d.server.config.Options.Filters
	timeout := closeTimeout
	if !o.ShutdownSendRetryAfter { // with it everything has been drained
		timeout += max(o.RequestTimeout, o.ShutdownWatchTerminationGracePeriod)
	}
	for _, server := range []*http.Server{d.server.http, d.server.plain} {
		if server != nil {
			d.closing.Go(func() { closeServer(timeout, server) })
		}
	}
}

// closeConnections ends what is still served, such as watches without a grace
// period and streams to containers, and waits until connections are closed.
func (d *shutdown) closeConnections() {
	d.server.endRequests()
	d.closing.Wait()
}

// closeServer waits for connections to become idle, and closes those that don't.
func closeServer(timeout time.Duration, server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		klog.V(2).InfoS("Connections were closed before they were idle", "err", err)
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
