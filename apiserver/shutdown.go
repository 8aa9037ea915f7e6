package apiserver

import (
	"sync"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/process/lifecycle"
	"byre/apiserver/process/systemd"
)

// leaveTimeout bounds how long a shutdown waits until this server's entry in the
// kubernetes Service is removed. After this time the entry expires by itself.
const leaveTimeout = replicaTTL

// shutdown stops serving, in the order that package lifecycle gives. The stages other than
// membership and serving still run when it returns.
func (s *Server) shutdown(stages *lifecycle.Stages) {
	klog.InfoS("Stopping", "delay", s.options.ShutdownDelay)
	systemd.NotifyStopping()
	s.signals.ShutdownInitiated.Signal()
	var leaving sync.WaitGroup
	lifecycle.Run(s.signals.Shutdown(lifecycle.Actions{
		Delay:            func() { time.Sleep(s.options.ShutdownDelay) },
		PreShutdown:      func() { leave(stages, &leaving) },
		DrainRequests:    s.http.drainRequests,
		DrainWatches:     s.http.drainWatches,
		StopListening:    func() { stages.StopStage(servingStage) },
		CloseConnections: s.http.closeConnections,
	}, s.options.Filters.ShutdownSendRetryAfter))
	klog.InfoS("Drained")
	leaving.Wait()
}

// leave removes this server from the endpoints of the kubernetes Service and releases
// the controllers' Lease. If the database does not answer in time, both expire by themselves;
// leaving then still counts the goroutine that waits for it.
func leave(stages *lifecycle.Stages, leaving *sync.WaitGroup) {
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
