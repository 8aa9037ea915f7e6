package controllers

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"
)

// LeaderElectionTimers are the timers of the election of the server that runs the
// coordinated leader election.
type LeaderElectionTimers struct{ LeaseDuration, RenewDeadline, RetryPeriod time.Duration }

// DefaultLeaderElectionTimers returns kube-apiserver's defaults.
func DefaultLeaderElectionTimers() LeaderElectionTimers {
	return LeaderElectionTimers{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
}

// Validate returns one error for each invalid flag.
func (t LeaderElectionTimers) Validate() []error {
	var errs []error
	if t.LeaseDuration <= t.RenewDeadline {
		errs = append(errs, errors.New("--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"))
	}
	if t.RenewDeadline <= t.RetryPeriod {
		errs = append(errs, errors.New("--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period"))
	}
	if t.RetryPeriod <= 0 {
		errs = append(errs, errors.New("--coordinated-leadership-retry-period must be positive"))
	}
	return errs
}

// candidateGCPeriod is the time between two garbage collections of LeaseCandidates, as in
// kube-apiserver.
const candidateGCPeriod = 30 * time.Minute

// runCoordinatedLeaderElection runs upstream's controller, which selects leaders among
// LeaseCandidates, while this server is the elected coordinator.
func (c *ControlPlane) runCoordinatedLeaderElection(ctx context.Context) {
	leases := c.config.Informers.Coordination().V1().Leases()
	candidates := c.config.Informers.Coordination().V1beta1().LeaseCandidates()
	leaderelection.RunWithLeaderElection(ctx, c.config.Loopback, func() (func(context.Context, int), error) {
		controller, err := leaderelection.NewController(leases, candidates, c.config.Client.CoordinationV1(), c.config.Client.CoordinationV1beta1())
		if err != nil {
			return nil, err
		}
		gc := leaderelection.NewLeaseCandidateGC(c.config.Client, candidateGCPeriod, candidates)
		return func(ctx context.Context, workers int) {
			var collecting sync.WaitGroup
			defer collecting.Wait()
			collecting.Go(func() { gc.Run(ctx) })
			controller.Run(ctx, workers)
		}, nil
	}, leaderelection.LeaderElectionTimers(c.config.LeaderElection))
}
