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

	"byre/apiserver/process/lifecycle"
	"byre/apiserver/process/systemd"
)

const (
	// closeTimeout bounds how long a shutdown waits for connections whose requests have
	// ended. Upstream waits 2 s with --shutdown-send-retry-after; a client on a slow
	// line may need longer to receive an answer that the server has sent.
	closeTimeout = 5 * time.Second
	// leaveTimeout bounds how long a shutdown waits until this server's entry in the
	// kubernetes Service is removed. After this time the entry expires by itself.
	leaveTimeout = replicaTTL
	// minWatchesPerSecond is the lowest rate at which draining ends watches, per
	// second; upstream's value.
	minWatchesPerSecond = 200
)

// shutdown implements the steps of lifecycle.Signals.Shutdown.
type shutdown struct {
	server *Server
	stages *lifecycle.Stages
	// leaving counts the goroutine that stops the membership stage; closing counts
	// those that wait for requests and connections. Steps wait for them for a bounded
	// time.
	leaving, closing sync.WaitGroup
}

func newShutdown(s *Server, stages *lifecycle.Stages) *shutdown {
	return &shutdown{server: s, stages: stages}
}

// run stops serving, in the order that package lifecycle gives. The stages other than
// membership and serving still run when it returns.
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

// wait joins the goroutine that leave may have stopped waiting for.
func (d *shutdown) wait() { d.leaving.Wait() }

// leave removes this server from the endpoints of the kubernetes Service and releases
// the controllers' Lease. If the database does not answer, both expire by themselves.
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

// drainRequests waits until the requests that are not long-running have ended. While it
// waits, filters.Chain refuses new ones on connections that are still open.
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

// drainWatches ends the watches, spread over the grace period so that their clients do
// not all reconnect to the other replicas at once. Without a grace period
// closeConnections ends them.
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

// closeListeners closes the listeners and sends GOAWAY to HTTP/2 clients. It does not
// wait for the connections; closing counts the goroutines that do.
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

// closeConnections ends the requests that are still served, such as watches without a
// grace period and streams to containers, and waits until the connections are closed.
func (d *shutdown) closeConnections() {
	d.server.endRequests()
	d.closing.Wait()
}

// closeServer waits until connections are idle, and after timeout closes those that are
// not.
func closeServer(timeout time.Duration, server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		klog.V(2).InfoS("Connections were closed before they were idle", "err", err)
		_ = server.Close() // what it can't close is closed with the process
	}
}

// closeListener closes a listener that no server serves; nil means that there is none.
func closeListener(listener net.Listener) error {
	if listener == nil {
		return nil
	}
	return listener.Close()
}
