package apiserver

import (
	"context"
	"net"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/klog/v2"

	"byre/apiserver/lifecycle"
)

const (
	// closeTimeout is how long a shutdown waits for connections whose requests
	// have ended; upstream's value with --shutdown-send-retry-after is 2 s, which
	// a client on a slow line may need for an answer that is all sent.
	closeTimeout = 5 * time.Second
	// leaveTimeout bounds how long a shutdown waits for the server to leave the
	// kubernetes Service. After as long its entry has expired.
	leaveTimeout = replicaTTL
	// minWatchesPerSecond is how many watches end in a second at least while
	// watches are drained; upstream's value.
	minWatchesPerSecond = 200
)

// shutDown stops serving, in the order of package lifecycle.
func (r *running) shutDown() {
	o := r.config.Options
	klog.InfoS("Stopping", "delay", o.ShutdownDelay)
	r.signals.ShutdownInitiated.Signal()
	lifecycle.Run(r.signals.Shutdown(lifecycle.Actions{
		Delay:            func() { time.Sleep(o.ShutdownDelay) },
		PreShutdown:      r.leave,
		DrainRequests:    r.drainRequests,
		DrainWatches:     r.drainWatches,
		StopListening:    r.stopListening,
		CloseConnections: r.closeConnections,
	}, o.Filters.ShutdownSendRetryAfter))
	klog.InfoS("Drained")
}

// leave takes this server out of the kubernetes Service and gives the controllers'
// lease back. If the database doesn't answer, both expire.
func (r *running) leave() {
	left := make(chan struct{})
	r.leaving.Go(func() {
		defer close(left)
		r.membership.stop()
	})
	select {
	case <-left:
	case <-time.After(leaveTimeout):
		klog.InfoS("Could not leave the kubernetes Service in time; the entry expires", "timeout", leaveTimeout)
	}
}

// drainRequests waits for requests that are not long-running. From its start such a
// request on a connection that is still open is refused (filters.Chain).
func (r *running) drainRequests() {
	drained := make(chan struct{})
	r.closing.Go(func() {
		defer close(drained)
		r.requests.Wait()
	})
	select {
	case <-drained:
	case <-time.After(r.config.Options.Filters.RequestTimeout + closeTimeout):
		klog.InfoS("Requests go on beyond their timeout, and are cut")
	}
}

// drainWatches waits until watches have ended, spread over the grace period so
// that their clients don't come to the other replicas all at once. Without a grace
// period closeConnections ends them.
func (r *running) drainWatches() {
	grace := r.config.Options.Filters.ShutdownWatchTerminationGracePeriod
	if grace <= 0 {
		return
	}
	before, after, err := r.watches.Wait(func(count int) (waitgroup.RateLimiter, context.Context, context.CancelFunc) {
		perSecond := max(float64(count)/grace.Seconds(), minWatchesPerSecond)
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		return rate.NewLimiter(rate.Limit(perSecond), 1), ctx, cancel
	})
	klog.V(1).InfoS("Watches have ended", "before", before, "after", after, "err", err)
}

// stopListening closes the listeners, tells HTTP/2 clients to go elsewhere, and has
// closing wait for the connections.
func (r *running) stopListening() {
	o := r.config.Options.Filters
	timeout := closeTimeout
	if !o.ShutdownSendRetryAfter { // with it everything has been drained
		timeout += max(o.RequestTimeout, o.ShutdownWatchTerminationGracePeriod)
	}
	r.serving.cancel()
	for _, server := range []*http.Server{r.http, r.plain} {
		if server != nil {
			r.closing.Go(func() { closeServer(timeout, server) })
		}
	}
	r.serving.stop()
}

// closeConnections ends what is still served, such as watches without a grace
// period and streams to containers, and waits until connections are closed.
func (r *running) closeConnections() {
	r.endRequests()
	r.closing.Wait()
}

// closeServer waits for connections to become idle, and cuts those that don't.
func closeServer(timeout time.Duration, server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
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
